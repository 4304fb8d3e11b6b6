"""Verdicts, votes, bonds and addresses through ProgramClient, on the real programs in LiteSVM."""

from __future__ import annotations

from dataclasses import replace

from client_world import World, expect, play
from programs_harness import make_p2p_key
from rulebook_driver import get_hint
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.client import RunHandle
from psyche_py.chain.events import DisputeOpened, DisputeSettled, read_events
from psyche_py.coordinator.duties import compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ClientState, DisputeState, RunState, compute_account_discriminator
from psyche_py.coordinator.state import CoordinatorAccount

EVIDENCE = bytes(range(32))


async def play_until(world: World, run: RunHandle, height: int) -> CoordinatorAccount:
    """Everybody attests up to a round."""
    for _ in range(200):
        account = (await world.owner.fetch_run(run.run_id)).account
        if account.run_state is RunState.RoundTrain and account.current_round.height >= height:
            return account
        if account.run_state is RunState.Warmup:
            await world.warm_up(await world.owner.fetch_run(run.run_id))
        elif account.run_state is RunState.RoundTrain:
            await world.attest(await world.owner.fetch_run(run.run_id))
        world.backend.advance(1)
        await world.owner.tick(run)
    raise AssertionError("the round does not come")


def test_a_dispute_from_verdict_to_ejection() -> None:
    async def script(world: World) -> None:
        run = await world.make_run(init_min_clients=5, verification_percent=50)
        await world.owner.update_run(run, slashing_rate_per_client=300)
        await world.join(run)
        account = await play_until(world, run, 2)
        duties = compute_duties(account, 2)
        duty = duties[0]
        accusation = {"trainer": duty.trainer, "height": 1, "reason": 6, "evidence_hash": EVIDENCE}
        other = next(
            index for index in range(5) if index not in {d.verifier for d in compute_duties(account, 2)}
        )
        verdict = world.clients[other].verdict(run, index=other, **accusation)
        await expect("NotTheVerifier", verdict)
        done = await world.clients[duty.verifier].verdict(run, index=duty.verifier, **accusation)
        (opened,) = read_events(done.logs).get_disputes(run.coordinator_account)
        assert isinstance(opened, DisputeOpened)
        assert opened.trainer == world.clients[duty.trainer].payer.pubkey()
        assert read_events(done.logs).get_disputes(run.instance) == []
        account = await play_until(world, run, 3)
        (dispute,) = account.disputes
        judges = [index for index in range(5) if is_tie_breaker(account, dispute, index)]
        for index in judges[:2]:
            ballot = {"index": index, "evidence_hash": EVIDENCE, "is_guilty": True}
            done = await world.clients[index].vote(run, **ballot)
        (settled,) = read_events(done.logs).get_disputes(run.coordinator_account)
        assert isinstance(settled, DisputeSettled)
        assert (settled.state, settled.slashed) == (DisputeState.Guilty, 300)
        late = world.clients[judges[2]].vote(run, index=judges[2], evidence_hash=EVIDENCE, is_guilty=True)
        await expect("NoSuchDispute", late)
        account = (await world.owner.fetch_run("run")).account
        assert account.epoch_clients[duty.trainer].state is ClientState.Ejected
        user = world.clients[duty.trainer].payer.pubkey()
        await expect("ClaimExceedsEarned", world.owner.settle_debt(run, user=user, points=301))
        await expect("WrongAuthority", world.clients[0].settle_debt(run, user=user, points=1))
        await world.owner.settle_debt(run, user=user, points=300)
        account = (await world.owner.fetch_run("run")).account
        assert [entry.debt for entry in account.entries] == [0] * 5

    play(script, 5)


def test_an_address_changes() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        first = world.clients[0]
        await expect("SignerNotAClient", first.announce(run, address_hint=get_hint(1)))
        await world.join(run)
        await first.announce(run, address_hint=get_hint(77))
        assert (await first.fetch_run("run")).account.entries[0].address_hint == get_hint(77)
        await expect("InvalidAddressHint", first.announce(run, address_hint=b"\xff" * 64))

    play(script)


def test_a_run_that_asks_for_a_bond() -> None:
    async def script(world: World) -> None:
        run = await world.make_run()
        await world.owner.set_paused(run, True)
        await world.owner.update_run(run, config=replace(run.account.config, required_bond=5))
        await world.owner.set_paused(run, False)
        first = world.clients[0]
        join = {"p2p_key": make_p2p_key(first.payer), "address_hint": get_hint(1)}
        await expect("BondMissing", first.join_run(run, **join))
        await expect("BondMissing", first.join_run(run, **join, bond=run.instance))
        bond = Pubkey([7] * 32)
        keys = [run.main_authority, first.payer.pubkey(), run.coordinator_account]
        data = compute_account_discriminator("Bond") + b"\xff" + b"".join(map(bytes, keys))
        account = Account(10**9, data + (5).to_bytes(8, "little"), get_program_id("treasurer"))
        world.backend.engine.set_account(bond, account)
        await first.join_run(run, **join, bond=bond)
        assert len((await first.fetch_run("run")).account.entries) == 1

    play(script)
