"""Votes that are not the sender's to give, come twice, too late, or decide what they should not."""

from __future__ import annotations

from typing import Any

import pytest
from attack_disputes import (
    REFUSAL,
    SLASH,
    accuse,
    decide,
    find_dispute,
    get_client_wallet,
    list_duties,
    list_judges,
    make_evidence_hash,
    make_verdict,
    make_vote,
)
from attack_oracle import judge, judge_and_keep
from attack_scenes import STATES, Scene, build_scene, build_verified, get_scene
from programs_harness import RunHarness, make_config
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.coordinator.disputes import JUDGES_PAY, LOSS
from psyche_py.coordinator.layout import NUM_STORED_ROUNDS, ClientState, DisputeState, RunState


def build_judged(num: int = 6, **config: int) -> Scene:
    """A dispute that waits for its votes, in a run of so many clients."""
    scene = build_verified(num, **config)
    accuse(scene.run)
    scene.run.play_round()
    return scene


def get_entry_of(run: RunHarness, index: int) -> tuple[int, int, int]:
    """Points of an epoch client: earned, slashed, claimed."""
    entry = run.account.entries[run.account.epoch_clients[index].entry]
    return entry.earned, entry.slashed, entry.claimed


def test_only_tie_breakers_vote() -> None:
    """Neither the parties, nor those who were not drawn, nor strangers, nor another in a judge's name."""
    scene = build_judged(16)
    chain, run = scene.chain, scene.run
    judges, dispute = list_judges(run), find_dispute(run)
    assert len(judges) == dispute.tie_breakers == 9
    for index in range(16):
        for is_guilty in (True, False):
            vote = make_vote(run, index, is_guilty)
            if index in judges:
                chain.honest(vote)
            else:
                chain.attack(f"a vote of {index}", "NotATieBreaker", vote)
            stolen = make_vote(run, judges[0], is_guilty, signer=get_client_wallet(run, index))
            if index != judges[0]:
                chain.attack("a vote in a judge's name", "ClientNotInEpoch", stolen)
    for stranger in (scene.thief, run.owner, scene.rival.wallets[0]):
        hostile = make_vote(run, judges[0], True, signer=stranger)
        chain.attack("a vote of a stranger", "SignerNotAClient", hostile)
    for index in (16, 255, 256, 2**15, 2**15 + judges[0], 2**16 - 1, judges[0] + 256):
        signer = get_client_wallet(run, judges[0])
        hostile = make_vote(run, index, True, signer=signer)
        chain.attack(f"a vote as {index}", "ClientNotInEpoch", hostile)


def test_one_judge_one_vote() -> None:
    """Not twice, not both, not in one transaction, and not one more once it is decided."""
    scene = build_judged()
    chain, run = scene.chain, scene.run
    first, *others = list_judges(run)
    for is_guilty in (True, False):
        for other in (True, False):
            votes = make_vote(run, first, is_guilty), make_vote(run, first, other)
            chain.attack("voting twice at once", "DuplicateVote", *votes)
    chain.commit(make_vote(run, first, True))
    for is_guilty in (True, False):
        chain.attack("voting twice", "DuplicateVote", make_vote(run, first, is_guilty))
    decide(run, True)
    for index in (first, *others):
        chain.attack("voting on what is decided", "NoSuchDispute", make_vote(run, index, False))


def test_less_than_two_thirds_decide_nothing() -> None:
    """4 judges: 2 against 2 leave it open until its time is over, and then nobody is slashed."""
    scene = build_judged()
    chain, run = scene.chain, scene.run
    judges = list_judges(run)
    assert len(judges) == 4
    for number, index in enumerate(judges):
        assert judge_and_keep(chain, "a hung jury", make_vote(run, index, number < 2)).error is None
    assert find_dispute(run).is_open
    for _ in range(NUM_STORED_ROUNDS):
        run.play_round()
    assert find_dispute(run).state is DisputeState.Undecided
    assert not any(entry.slashed for entry in run.account.entries)
    assert all(client.state is ClientState.Healthy for client in run.account.epoch_clients)
    for index in judges:
        chain.attack("a vote after its time", "NoSuchDispute", make_vote(run, index, True))


def get_rounds(run: RunHarness) -> list[int]:
    """Attested rounds, by epoch client."""
    return [client.attested_rounds for client in run.account.epoch_clients]


def test_a_liar_cannot_leave_its_loss_behind() -> None:
    """It votes and leaves before the others decide: its rounds are settled with what it said."""
    scene = build_judged(16)
    chain, run = scene.chain, scene.run
    while min(get_rounds(run)) < LOSS:  # something to lose; the ring still holds the judges' round
        run.play_round()
    liars, others = list_judges(run)[:2], list_judges(run)[2:8]
    before = get_rounds(run)
    for index in liars:
        vote = make_vote(run, index, False)
        leave = run.encode("leave_run", get_client_wallet(run, index))
        assert judge_and_keep(chain, "a lie and away", vote, leave).error is None
        assert run.account.epoch_clients[index].state is ClientState.Withdrawn
        chain.attack("another word from outside", "ClientNotInEpoch", make_vote(run, index, True))
    assert get_rounds(run) == before
    for index in others:
        assert judge_and_keep(chain, "the truth", make_vote(run, index, True)).error is None
    assert find_dispute(run).state is DisputeState.Guilty
    expected = dict.fromkeys(liars, -LOSS) | dict.fromkeys(others, JUDGES_PAY)
    assert get_rounds(run) == [old + expected.get(index, 0) for index, old in enumerate(before)]


def test_two_thirds_do_not_convict_of_not_answering() -> None:
    """Nobody can show that it answered, so a gang needs three quarters: of 9 judges 7."""
    scene = build_verified(16)
    chain, run = scene.chain, scene.run
    accuse(run, reason=REFUSAL)
    run.play_round()
    gang, honest = list_judges(run)[:6], list_judges(run)[6:]
    for index in gang:
        assert judge_and_keep(chain, "a gang convicts", make_vote(run, index, True)).error is None
    dispute = find_dispute(run)
    assert dispute.is_open
    for index in honest:
        assert judge_and_keep(chain, "others acquit", make_vote(run, index, False)).error is None
    assert find_dispute(run).is_open
    for _ in range(NUM_STORED_ROUNDS):
        run.play_round()
    assert find_dispute(run).state is DisputeState.Undecided
    assert run.account.epoch_clients[dispute.trainer].state is ClientState.Healthy
    assert not any(entry.slashed for entry in run.account.entries)


def test_late_votes() -> None:
    """Taken while the ring holds the judges' round, not one round longer."""
    scene = build_judged(6, max_witness_contradictions=16)
    chain, run = scene.chain, scene.run
    vote = make_vote(run, list_judges(run)[0], True)
    for _ in range(NUM_STORED_ROUNDS):
        chain.honest(vote)
        run.play_round()
    for _ in range(3):
        chain.attack("a vote too late", "NoSuchDispute", vote)
        run.play_round()


def test_votes_before_there_are_judges() -> None:
    """If nobody ticks there are none for years: neither party is paid, and anybody's ticks end it."""
    scene = build_verified(4)
    chain, run = scene.chain, scene.run
    duty = accuse(run)
    for seconds in (0, 1, 10_000, 10**8):
        with chain.undone():
            chain.set_now(chain.now + seconds)
            for index in range(4):
                chain.attack("a vote before the judges", "VotingOver", make_vote(run, index, True))
            for index in (duty.verifier, duty.trainer):
                user = get_client_wallet(run, index).pubkey()
                assert judge(chain, "a claim", _encode_claim(scene, user)).error == "InDispute"
    # nobody has attested: two strangers' ticks end the round, the epoch and the dispute
    chain.advance(10**8)
    for _ in range(3):
        judge_and_keep(chain, "a late tick", run.encode("tick", scene.thief))
        chain.advance(100)
    assert run.state is RunState.WaitingForMembers
    assert find_dispute(run).state is DisputeState.Undecided


def _encode_claim(scene: Scene, user: Pubkey) -> Instruction:
    run = scene.run
    accounts = {"authority": run.owner.pubkey(), "instance": run.instance, "coordinator_account": run.address}
    return get_program("coordinator").encode("record_claim", accounts, {"user": user, "points": 0})


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("judging", "older")])
def test_a_vote_of_another_run_or_time(state: str) -> None:
    home, scene = get_scene("judging"), get_scene(state)
    vote = make_vote(home.run, list_judges(home.run)[1], True)
    home.chain.honest(vote)
    scene.chain.keys.update(home.chain.keys)
    names = ["SignerNotAClient", "InvalidRunState", "Halted", "NoSuchDispute", "ClientNotInEpoch"]
    scene.chain.attack(f"a vote in {state}", names, vote)


def test_votes_in_cooldown_decide_before_points_are_settled() -> None:
    """The last round's dispute: its judges have as long as in a round, the epoch does not end before, and the
    convict gets nothing of it."""
    scene = build_verified(6)
    chain, run = scene.chain, scene.run
    duty = accuse(run)
    chain.advance(20_000)
    while run.state is not RunState.Cooldown:
        run.play_round()
    assert find_dispute(run).is_open
    judges, config = list_judges(run), run.account.config
    tick = run.encode("tick", scene.thief)
    with chain.undone():
        chain.set_now(chain.now + config.max_round_train_time - 1)
        assert not judge(chain, "hurrying the cooldown", tick).changes
    votes = [make_vote(run, index, True) for index in judges[:3]]
    assert judge_and_keep(chain, "votes in cooldown", *votes).error is None
    assert run.account.epoch_clients[duty.trainer].state is ClientState.Ejected
    chain.advance(config.max_round_train_time)
    assert judge_and_keep(chain, "settling", tick).error is None
    assert run.state is RunState.WaitingForMembers
    assert get_entry_of(run, duty.trainer) == (0, SLASH, 0)
    assert sum(entry.earned for entry in run.account.entries) == 100
    assert judge(chain, "a vote after the epoch", make_vote(run, judges[3], True)).error == "InvalidRunState"


def test_a_dispute_across_an_epochs_end_has_its_judges() -> None:
    """Accused in the very last round: rounds that train nothing follow until somebody has judged."""
    scene = build_verified(6)
    chain, run = scene.chain, scene.run
    chain.advance(20_000)
    while not run.account.current_round.apply_only:
        run.play_round()
    run.play_round()
    assert run.account.previous_round.apply_only  # type: ignore[union-attr]
    duty, height = list_duties(run, late=1)[0], run.account.current_round.height
    chain.commit(make_verdict(run, duty, height=height - 2))
    run.play_round()
    assert run.state is RunState.RoundTrain
    assert run.account.current_round.apply_only
    assert find_dispute(run).judge_height == height + 1
    decide(run, True)
    run.play_round()
    assert run.state is RunState.Cooldown
    assert run.account.epoch_clients[duty.trainer].state is ClientState.Ejected


def test_a_dead_verifier_ends_nothing() -> None:
    """Its accusation stands when it is Dropped, and so does its risk."""
    for is_guilty in (True, False):
        scene = build_judged(6)
        chain, run = scene.chain, scene.run
        dispute = find_dispute(run)
        leave = run.encode("leave_run", get_client_wallet(run, dispute.accuser))
        assert judge_and_keep(chain, "leaving its accusation", leave).error is None
        decide(run, is_guilty)
        loser, winner = dispute.trainer, dispute.accuser
        if not is_guilty:
            loser, winner = winner, loser
        assert run.account.epoch_clients[loser].state is ClientState.Ejected
        assert get_entry_of(run, loser)[1] == SLASH
        assert get_entry_of(run, winner)[1] == 0


def test_a_verifier_dropped_by_the_witnesses_still_answers() -> None:
    scene = build_judged(6)
    chain, run = scene.chain, scene.run
    dispute = find_dispute(run)
    run.play_round()
    others = [i for i in run.account.previous_round.healthy_indices if i != dispute.accuser]  # type: ignore[union-attr]
    run.play_round(seen=others)
    if run.state is RunState.RoundWitness:
        run.tick(5)
    helper = next(w for w in run.wallets if w != get_client_wallet(run, dispute.accuser))
    chain.commit(run.encode("health_check", helper, index=dispute.accuser))
    assert run.account.epoch_clients[dispute.accuser].state is ClientState.Dropped
    decide(run, False)
    assert run.account.epoch_clients[dispute.accuser].state is ClientState.Ejected
    assert get_entry_of(run, dispute.accuser)[1] == SLASH


def test_a_pause_in_the_middle_of_a_dispute_changes_nothing_about_it() -> None:
    """The owner can change configuration and rates only when the dispute is over."""
    scene = build_judged(6)
    chain, run = scene.chain, scene.run
    dispute = find_dispute(run)
    chain.commit(make_vote(run, list_judges(run)[0], True))
    owner = {"authority": run.owner.pubkey(), "instance": run.instance, "coordinator_account": run.address}

    def own(name: str, **args: Any) -> Instruction:
        return get_program("coordinator").encode(name, owner, args)

    pause = own("set_paused", paused=True)
    rates = own("set_future_epoch_rates", earning_rate_total_shared=2**63, slashing_rate_per_client=2**64 - 1)
    assert judge_and_keep(chain, "pausing and new rates", pause, rates).error is None
    for changes in ({"verification_percent": 0}, {"num_tie_breakers": 1}, {"max_refusals": 0}):
        config = make_config(**changes).to_bytes()
        update = own("update", config=config, metadata=None, model=None, progress=None)
        chain.attack(f"changing {changes} in a dispute", "UpdateConfigNotHalted", update)
    assert find_dispute(run).votes == ((list_judges(run)[0], True),)
    decide(run, True)
    assert get_entry_of(run, dispute.trainer)[1] == SLASH, "at the rate of the epoch's start"
    while run.state is not RunState.Cooldown:
        run.play_round()
    run.tick(30)
    assert run.state is RunState.Paused


def test_another_p2p_key_or_address_saves_nobody() -> None:
    """Leaving and joining again, with another key, in the middle of the dispute: the entry is the same, and
    the convict is out of the epoch that it joined, too."""
    scene = build_judged(6)
    chain, run = scene.chain, scene.run
    dispute = find_dispute(run)
    wallet, key = get_client_wallet(run, dispute.trainer), chain.make_key("another p2p key")
    rejoin = run.encode("join_run", wallet, p2p=key, address_hint=bytes(64))
    chain.attack("another key in the epoch", "ClientKeysInUse", rejoin)
    leave = run.encode("leave_run", wallet)
    announce = run.encode("announce", wallet, address_hint=b"\1" + bytes(63))
    assert judge_and_keep(chain, "leaving and joining", leave, rejoin, announce).error is None
    entry = run.account.epoch_clients[dispute.trainer].entry
    assert entry in run.account.pending
    decide(run, True)
    assert run.account.epoch_clients[dispute.trainer].state is ClientState.Ejected
    assert get_entry_of(run, dispute.trainer)[1] == SLASH
    assert entry not in run.account.pending, "what is at stake is asked again"


def test_an_ejected_client_does_nothing_more_in_the_epoch() -> None:
    """But for attesting in the round that elected it, like others that leave: quorums count the elected."""
    scene = build_scene("indebted")
    chain, run = scene.chain, scene.run
    convict = next(c for c in run.account.epoch_clients if c.state is ClientState.Ejected)
    wallet = run.get_wallet(convict)
    judge(chain, "a convict attests", run.encode("witness", wallet, **run.make_witness(convict)))
    run.play_round()
    if run.state is RunState.RoundWitness:
        run.tick(5)
    assert not run.account.current_round.elected >> convict.index & 1
    chain.honest(
        run.encode("witness", run.get_wallet(run.get_elected()[0]), **run.make_witness(run.get_elected()[0]))
    )
    late = run.encode("witness", wallet, **run.make_witness(convict))
    chain.attack("a convict attests in another round", "InvalidWitness", late)
    for index in range(4):
        vote = make_vote(run, index, True, signer=wallet, evidence_hash=make_evidence_hash(5))
        chain.attack("a convict votes", "ClientNotInEpoch", vote)
    place = {"kind": 2, "repo": b"mine".ljust(128, b"\0"), "revision": bytes(64)}
    chain.attack("a convict's model", "ClientNotInEpoch", run.encode("checkpoint", wallet, **place))
