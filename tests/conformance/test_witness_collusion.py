"""What witnesses that lie together can do, for every number of them from none to all (docs/protocol.md).

Every client is elected. The last ``num_liars`` of them lie about two clients: they leave out client 0, which
delivers, and name the last client, one of their own that does not. The rest attest what they saw. Both the
rule book and the program play every script.
"""

from __future__ import annotations

from typing import Any

import pytest
from conformance import Pair
from rulebook_driver import make_join, make_run_config, make_witness

from psyche_py.coordinator.committee import compute_num_elected
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.witness import compute_quorum

VICTIM = 0
SIZES = (1, 2, 3, 4, 5, 7, 8)
CASES = [(num, liars) for num in SIZES for liars in range(num + 1)]


def ok(pair: Pair, name: str, **arguments: Any) -> None:
    """An event that both accept."""
    error = pair.apply(name, **arguments)
    assert error is None, f"{name}: {error}"


def start(num: int, **config: int) -> Pair:
    """An epoch of ``num`` clients, all of them witnesses, in its second round."""
    pair = Pair(num)
    settings = {"init_min_clients": num, "min_clients": 1, "epoch_time": 10_000, **config}
    run_config = make_run_config(**settings)
    ok(pair, "update", config=run_config.config.to_bytes().hex(), model=run_config.model.to_bytes().hex())
    ok(pair, "set_future_epoch_rates", earning_rate_total_shared=1000, slashing_rate_per_client=None)
    ok(pair, "set_paused", paused=False)
    for client in range(num):
        ok(pair, "join_run", **make_join(client))
    ok(pair, "advance", seconds=3, slots=6)
    ok(pair, "tick")
    for client in range(num):
        ok(pair, "warmup_witness", client=client, index=client)
    play_round(pair, range(num))
    assert pair.rules.account.current_round.height == 1
    return pair


def play_round(pair: Pair, honest: range, liars: range = range(0), *, absent: int | None = None) -> None:
    """The witnesses attest; what the round still waits for then runs into its timers."""
    height = pair.rules.account.current_round.height
    ok(pair, "advance", seconds=1, slots=2)
    for client in (*honest, *liars):
        lie = 1 << VICTIM
        truth = 1 << absent if absent is not None else 0
        arguments = make_witness(pair.rules, client, missing=lie if client in liars else truth)
        if arguments is not None:
            ok(pair, "witness", **arguments)
    for _ in range(2):
        account = pair.rules.account
        is_open = account.run_state in (RunState.RoundTrain, RunState.RoundWitness)
        if is_open and account.current_round.height == height:
            ok(pair, "advance", seconds=20, slots=40)
            ok(pair, "tick")


def get_clients(pair: Pair) -> list[tuple[int, int]]:
    """(attested rounds, contradictions) by client."""
    return [(client.attested_rounds, client.contradictions) for client in pair.rules.account.epoch_clients]


@pytest.mark.parametrize(("num", "num_liars"), CASES)
def test_what_liars_can_have_attested(num: int, num_liars: int) -> None:
    pair = start(num)
    quorum, num_honest = compute_quorum(compute_num_elected(0, num)), num - num_liars
    honest, liars = range(num_honest), range(num_honest, num)
    absent = num - 1 if num_liars else None
    before = get_clients(pair)
    play_round(pair, honest, liars, absent=absent)
    gained = [after[0] - was[0] for after, was in zip(get_clients(pair), before, strict=True)]
    contradictions = [count for _, count in get_clients(pair)]
    # an honest client is attested as long as the honest are a quorum; without them only if it is not denied
    if num > 1 and absent != VICTIM:
        assert gained[VICTIM] == (num_honest >= quorum)
    # work that was not done is attested only by a quorum of liars
    if absent is not None and absent != VICTIM:
        assert gained[absent] == (num_liars >= quorum)
    # nobody else's round is touched by these lies
    assert all(gained[index] == 1 for index in range(1, num - 1))
    # whoever contradicts a quorum is counted; without a quorum on either side nobody is
    for index in range(num):
        contradicts = num_honest >= quorum if index in liars else (num_liars >= quorum and num_liars > 0)
        assert contradictions[index] == contradicts


@pytest.mark.parametrize(("num", "num_liars"), [case for case in CASES if case[0] > 1])
def test_who_liars_can_drop(num: int, num_liars: int) -> None:
    """A health check needs a quorum that missed the client: a blocking third is not enough."""
    pair = start(num)
    num_honest = num - num_liars
    play_round(pair, range(num_honest), range(num_honest, num))
    if pair.rules.account.run_state is not RunState.RoundTrain:
        pytest.fail("every witness attested, so the epoch goes on")
    error = pair.apply("health_check", client=num - 1, index=VICTIM)
    can = num_liars >= compute_quorum(num)
    assert error == (None if can else "InvalidHealthCheck")
    state = pair.rules.account.epoch_clients[VICTIM].state
    assert state is (ClientState.Dropped if can else ClientState.Healthy)


@pytest.mark.parametrize(("num", "num_liars"), [case for case in CASES if case[0] > 1])
def test_who_is_dropped_for_contradicting(num: int, num_liars: int) -> None:
    """The side without a quorum, once it has contradicted more often than the run allows."""
    pair = start(num, max_witness_contradictions=1)
    num_honest, quorum = num - num_liars, compute_quorum(num)
    for _ in range(2):
        play_round(pair, range(num_honest), range(num_honest, num))
    assert pair.rules.account.current_round.height == 3
    states = [client.state for client in pair.rules.account.epoch_clients]
    for index in range(num):
        other_side = num_honest if index >= num_honest else num_liars
        is_dropped = other_side >= quorum
        assert (states[index] is ClientState.Dropped) == is_dropped


@pytest.mark.parametrize(("num", "num_silent"), [case for case in CASES if case[1] < case[0]])
def test_what_silence_does(num: int, num_silent: int) -> None:
    """It costs the silent their round; beyond a blocking minority, everybody, and it ends the epoch."""
    pair = start(num)
    num_honest, quorum = num - num_silent, compute_quorum(num)
    before = get_clients(pair)
    play_round(pair, range(num_honest))
    gained = [after[0] - was[0] for after, was in zip(get_clients(pair), before, strict=True)]
    has_quorum = num_honest >= quorum
    assert gained == [int(has_quorum)] * num_honest + [0] * num_silent
    assert [client.silent_rounds for client in pair.rules.account.epoch_clients] == (
        [0] * num_honest + [1] * num_silent
    )
    expected = RunState.RoundTrain if has_quorum else RunState.Cooldown
    assert pair.rules.account.run_state is expected


def test_points_add_up_whatever_the_witnesses_say() -> None:
    for num_liars in range(6):
        pair = start(5, epoch_time=40)
        for _ in range(4):
            play_round(pair, range(5 - num_liars), range(5 - num_liars, 5))
        while pair.rules.account.run_state is not RunState.WaitingForMembers:
            ok(pair, "advance", seconds=20, slots=40)
            ok(pair, "tick")
        assert sum(entry.earned for entry in pair.rules.account.entries) == 1000
