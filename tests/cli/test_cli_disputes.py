"""``run-manager status`` while a dispute is open and after it was settled, on a chain of its own process."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from cli_process import Cli
from client_world import SOL, World
from solders.pubkey import Pubkey

from psyche_py.chain.client import RunHandle
from psyche_py.chain.clusters import resolve_cluster
from psyche_py.chain.rpc import RpcBackend
from psyche_py.coordinator.duties import Duty, compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.reasons import Reason
from psyche_py.coordinator.state import CoordinatorAccount

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM, RATE = 5, 300
EVIDENCE = bytes(range(32))
RUN_ID = "disputed"


class LocalWorld(World):
    """Owner and clients on a node with a clock of its own."""

    def __init__(self, backend: RpcBackend) -> None:
        self.backend = backend  # type: ignore[assignment]
        self.owner = self.make_client(0, 0)
        self.clients = [self.make_client(1 + number, 0) for number in range(NUM)]

    async def fund(self) -> None:
        for client in (self.owner, *self.clients):
            await self.backend.request_airdrop(client.payer.pubkey(), 10 * SOL)

    async def start(self) -> RunHandle:
        run = await self.make_run(RUN_ID, init_min_clients=NUM, verification_percent=40, epoch_time=5000)
        await self.owner.update_run(run, slashing_rate_per_client=RATE)
        await self.join(run)
        return run

    async def play_until(self, height: int) -> CoordinatorAccount:
        """Everybody attests up to a round."""
        with trio.fail_after(600):
            while True:
                run = await self.owner.fetch_run(RUN_ID)
                account = run.account
                if account.run_state is RunState.RoundTrain and account.current_round.height >= height:
                    return account
                if account.run_state is RunState.Warmup:
                    await self.warm_up(run)
                elif account.run_state is not RunState.WaitingForMembers:
                    await self.attest(run)
                await self.owner.tick(run)

    async def accuse(self, run: RunHandle) -> Duty:
        """The first verifier of round 2 or later accuses its trainer."""
        account = await self.play_until(2)
        duty = compute_duties(account, account.current_round.height)[0]
        await self.clients[duty.verifier].verdict(
            run,
            index=duty.verifier,
            trainer=duty.trainer,
            height=account.current_round.height - 1,
            reason=Reason.RESIDUAL,
            evidence_hash=EVIDENCE,
        )
        return duty

    async def convict(self, run: RunHandle) -> None:
        """As many judges as decide find against the trainer."""
        height = (await self.owner.fetch_run(RUN_ID)).account.current_round.height
        account = await self.play_until(height + 1)
        (dispute,) = account.disputes
        judges = [index for index in range(NUM) if is_tie_breaker(account, dispute, index)]
        for index in judges[:2]:
            await self.clients[index].vote(run, index=index, evidence_hash=EVIDENCE, is_guilty=True)


def test_status_tells_of_an_accusation_and_what_came_of_it(chain: Cli) -> None:
    shown: list[Any] = []

    async def look() -> dict[str, Any]:
        done = await trio.to_thread.run_sync(chain, "status", "-r", RUN_ID, "--output", "json")
        facts = done.json["verification"]
        assert isinstance(facts, dict)
        return facts

    async def script() -> None:
        async with RpcBackend(resolve_cluster(chain.url, None, {}, {})) as backend:
            world = LocalWorld(backend)
            await world.fund()
            run = await world.start()
            shown.append(await look())
            duty = await world.accuse(run)
            shown.extend([duty, await look()])
            await world.convict(run)

            shown.append([client.payer.pubkey() for client in world.clients])

    trio.run(script)
    before, duty, accused, signers = shown
    assert (before["percent"], before["disputes"], before["ejected"]) == (40, [], [])
    check_accused(accused, signers[duty.verifier], signers[duty.trainer])
    settled = chain("status", "-r", RUN_ID, "--output", "json").json
    check_settled(settled["verification"], signers[duty.trainer])
    text = chain("status", "-r", RUN_ID).out
    assert f"40 % of the clients verify; {RATE} points were slashed (rate {RATE})" in text
    assert f"Guilty: {signers[duty.verifier]} accuses {signers[duty.trainer]} for round" in text
    assert f"ejected: {signers[duty.trainer]} in round" in text
    assert "its gradient is not the one of its batch" in text


def check_accused(facts: dict[str, Any], accuser: Pubkey, trainer: Pubkey) -> None:
    (dispute,) = facts["disputes"]
    assert dispute["state"] == "Open"
    assert (dispute["accuser"], dispute["trainer"]) == (str(accuser), str(trainer))
    assert dispute["reason"] == "its gradient is not the one of its batch"
    assert dispute["evidence"] == EVIDENCE.hex()
    assert (dispute["num_guilty"], dispute["num_not_guilty"]) == (0, 0)
    assert (facts["slashed"], facts["ejected"], facts["refusals"]) == (0, [], [])


def check_settled(facts: dict[str, Any], trainer: Pubkey) -> None:
    (dispute,) = facts["disputes"]
    assert (dispute["state"], dispute["num_guilty"]) == ("Guilty", 2)
    (ejected,) = facts["ejected"]
    assert (ejected["signer"], ejected["slashed"]) == (str(trainer), RATE)
    assert ejected["reason"] == "its gradient is not the one of its batch"
    assert ejected["evidence"] == EVIDENCE.hex()
    assert facts["slashed"] == RATE
