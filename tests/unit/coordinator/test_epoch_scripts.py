"""Whole epochs, told step by step: the fast path, timers, losses, pauses, ends, and who is paid."""

from __future__ import annotations

import pytest
from rulebook_driver import Driver, get_signer, make_driver, make_join, make_witness

from psyche_py.coordinator.layout import CheckpointKind, ClientState, RunState
from psyche_py.coordinator.model import Progress
from psyche_py.coordinator.transition import compute_next_deadline, is_tick_due
from psyche_py.coordinator.witness import is_client_unhealthy


def run_until(driver: Driver, state: RunState, clients: list[int], max_rounds: int = 60) -> None:
    """Every client attests everything, one round a second, until the run is in ``state``."""
    for _ in range(max_rounds):
        if driver.account.run_state is state:
            return
        current = driver.account.current_round
        if driver.account.run_state is RunState.RoundTrain and not current.witnesses:
            driver.wait(1)
            driver.attest(clients)
        else:
            driver.tick_at_deadline()
    raise AssertionError(f"never reached {state.name}")


def earned(driver: Driver) -> list[int]:
    return [entry.earned for entry in driver.account.entries]


def test_a_quiet_epoch_from_join_to_join() -> None:
    driver = make_driver(epoch_time=30)
    driver.warm_up([0, 1, 2])
    account = driver.account
    assert account.next_active == 3, "entering the rounds opens the next epoch's list"
    assert (account.step, account.current_round.height, account.current_round.data_index) == (1, 0, 0)
    run_until(driver, RunState.Cooldown, [0, 1, 2])
    account = driver.account
    assert account.last_step == account.step
    assert account.current_round.apply_only
    assert account.previous_round is not None
    assert account.previous_round.apply_only
    last_index = account.current_round.data_index
    assert account.previous_round.data_index == last_index, "apply-only rounds take no data"
    driver.tick_at_deadline()
    account = driver.account
    assert account.run_state is RunState.WaitingForMembers
    assert account.epoch_start_data_index == last_index, "every sample was trained and applied"
    assert account.epoch == 1
    assert account.model.checkpoint_kind is CheckpointKind.P2P
    assert account.model.checkpoint_origin is CheckpointKind.Config
    assert earned(driver) == [334, 333, 333]
    assert not account.pending, "everybody must ask again"


def test_who_has_left_or_has_not_come_back_is_not_present_an_epoch_later() -> None:
    driver = make_driver(epoch_time=30)

    def get_present() -> list[bytes]:
        return [entry.signer for entry in driver.account.present]

    driver.join(3)
    assert get_present() == [get_signer(3)]
    driver.ok("leave_run", client=3)
    assert get_present() == []
    driver.warm_up([0, 1, 2])
    everybody = [get_signer(client) for client in (0, 1, 2)]
    assert get_present() == everybody, "during the epoch, which nobody has asked to follow"
    run_until(driver, RunState.Cooldown, [0, 1, 2])
    driver.tick_at_deadline()
    assert get_present() == everybody, "who is about to join again"
    driver.warm_up([0, 1])
    assert get_present() == everybody[:2], "2 may be late, but it would have joined"
    driver.ok("leave_run", client=1)
    assert get_present() == everybody[:2], "the epoch still names it"
    driver.join(2)
    assert get_present() == everybody
    assert len(driver.account.entries) == 4


def test_rounds_end_at_once_when_everything_is_attested() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    for height in range(5):
        assert driver.account.current_round.height == height
        driver.attest([0, 1])
    assert driver.account.run_state is RunState.RoundTrain
    assert driver.now == driver.account.run_state_start, "five rounds in one second"


def test_an_incomplete_round_waits_for_late_witness_time() -> None:
    driver = make_driver()
    driver.warm_up([0, 1, 2])
    driver.attest([0, 1, 2])
    driver.attest([0, 1, 2], missing=0b100)
    assert driver.account.run_state is RunState.RoundWitness
    started = driver.account.run_state_start
    assert compute_next_deadline(driver.account) == started + 3
    assert not is_tick_due(driver.account, started + 2)
    driver.tick_at_deadline()
    assert driver.account.current_round.height == 2


def test_the_timer_moves_a_round_with_few_witnesses_on() -> None:
    driver = make_driver()
    driver.warm_up([0, 1, 2])
    driver.attest([0, 1])
    assert driver.account.run_state is RunState.RoundTrain
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundWitness
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundTrain
    assert driver.account.current_round.height == 1


def test_a_late_witness_completes_round_witness_at_once() -> None:
    driver = make_driver()
    driver.warm_up([0, 1, 2])
    driver.attest([0, 1])
    driver.tick_at_deadline()
    driver.wait(1)
    driver.attest([2])
    assert driver.account.current_round.height == 1


@pytest.mark.parametrize(
    ("attesting", "height_reached"), [([], 0), ([0], 0), ([0, 1], 1)], ids=["none", "below quorum", "quorum"]
)
def test_quorum_decides_whether_the_epoch_goes_on(attesting: list[int], height_reached: int) -> None:
    driver = make_driver(min_clients=1)
    driver.warm_up([0, 1, 2])
    driver.attest(attesting)
    driver.tick_at_deadline()
    driver.tick_at_deadline()
    assert driver.account.current_round.height == height_reached
    state = driver.account.run_state
    assert state is (RunState.RoundTrain if height_reached else RunState.Cooldown)
    withdrawn = [c.state is ClientState.Withdrawn for c in driver.account.epoch_clients]
    assert all(withdrawn) if not attesting else not any(withdrawn)


def test_an_aborted_epoch_trains_its_last_two_rounds_again() -> None:
    driver = make_driver()
    driver.warm_up([0, 1, 2])
    starts = []
    for _ in range(4):
        starts.append(driver.account.current_round.data_index)
        driver.attest([0, 1, 2])
    assert driver.account.current_round.height == 4
    driver.tick_at_deadline()  # nobody attests round 4
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Cooldown
    driver.tick_at_deadline()
    assert driver.account.epoch_start_data_index == starts[3], "results of rounds 0 to 2 were applied"
    assert sum(earned(driver)) == 1000, "attested rounds are paid in an aborted epoch too"


def test_an_epoch_that_dies_in_its_first_round_changes_nothing_but_its_number() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    for _ in range(3):
        driver.tick_at_deadline()
    account = driver.account
    assert (account.epoch, account.epoch_start_data_index) == (1, 0)
    assert account.model.checkpoint_kind is CheckpointKind.Config, "nothing was applied: nothing to share"
    assert earned(driver) == [0, 0]


def test_clients_that_leave_end_the_epoch_below_min_clients() -> None:
    driver = make_driver(min_clients=2)
    driver.warm_up([0, 1])
    driver.attest([0, 1])
    driver.ok("leave_run", client=1)
    left = driver.account.epoch_clients[1]
    assert (left.state, left.exited_height) == (ClientState.Withdrawn, 1)
    driver.attest([0, 1])  # a client that left may still attest what it saw
    assert driver.account.run_state is RunState.Cooldown


def test_leaving_in_warmup_calls_the_epoch_off_unpaid() -> None:
    driver = make_driver(min_clients=2)
    driver.join(0, 1)
    driver.tick_at_deadline()
    driver.ok("leave_run", client=0)
    account = driver.account
    assert (account.run_state, account.epoch, earned(driver)) == (RunState.WaitingForMembers, 0, [0, 0])
    assert [entry.active == account.next_active for entry in account.entries] == [False, True]


def test_warmup_ends_by_its_timer_without_reports() -> None:
    driver = make_driver()
    driver.join(0, 1)
    driver.tick_at_deadline()
    assert compute_next_deadline(driver.account) == driver.now + 20
    driver.ok("warmup_witness", client=0, index=0)
    nonce = driver.account.nonce
    driver.ok("warmup_witness", client=0, index=0)
    assert driver.account.nonce == nonce, "a repeat changes nothing"
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundTrain


def test_one_client_cannot_end_warmup_alone() -> None:
    """Psyche's hazard: a warm-up witness with somebody else's index."""
    driver = make_driver()
    driver.join(0, 1, 2)
    driver.tick_at_deadline()
    driver.ok("warmup_witness", client=0, index=0)
    for index in (1, 2, 3, 255, 256, 65535):
        assert driver.apply("warmup_witness", client=0, index=index) == "InvalidWitness"
    assert driver.account.run_state is RunState.Warmup


def test_a_late_warmup_report_is_forgiven() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    nonce = driver.account.nonce
    driver.ok("warmup_witness", client=0, index=0)
    assert driver.account.nonce == nonce


def test_pause_during_rounds_ends_the_epoch_in_order_and_pays() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    driver.attest([0, 1])
    driver.ok("set_paused", paused=True)
    assert driver.account.is_pause_pending
    assert driver.account.run_state is RunState.RoundTrain
    nonce = driver.account.nonce
    driver.ok("set_paused", paused=True)
    assert driver.account.nonce == nonce
    run_until(driver, RunState.Paused, [0, 1])
    account = driver.account
    assert not account.is_pause_pending
    assert account.is_cold_start_epoch
    assert sum(earned(driver)) == 1000
    assert all(client.state is ClientState.Withdrawn for client in account.epoch_clients)
    driver.ok("set_paused", paused=False)
    driver.warm_up([0, 1])
    assert driver.account.is_cold_start_epoch
    assert driver.account.model.checkpoint_kind is CheckpointKind.P2P, "who comes back brings the model along"
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    assert not driver.account.is_cold_start_epoch


@pytest.mark.parametrize("state", [RunState.WaitingForMembers, RunState.Warmup])
def test_pause_outside_rounds_is_immediate(state: RunState) -> None:
    driver = make_driver()
    driver.join(0, 1)
    if state is RunState.Warmup:
        driver.tick_at_deadline()
    driver.ok("set_paused", paused=True)
    assert driver.account.run_state is RunState.Paused
    assert driver.apply("tick") == "Halted"
    assert driver.apply("set_paused", paused=True) == "Halted"
    assert compute_next_deadline(driver.account) is None
    driver.ok("set_paused", paused=False)
    assert not driver.account.pending, "everybody must join again after a pause"


@pytest.mark.parametrize("total_steps", [4, 5, 9])
def test_a_run_ends_at_total_steps(total_steps: int) -> None:
    driver = make_driver(total_steps=total_steps)
    driver.warm_up([0, 1])
    run_until(driver, RunState.Finished, [0, 1])
    assert driver.account.step == total_steps
    assert driver.apply("join_run", **make_join(5)) == "InvalidRunState"
    assert driver.apply("set_paused", paused=False) == "CannotResume"
    assert driver.apply("update", metadata=bytes(360).hex()) == "UpdateConfigFinished"
    driver.ok("leave_run", client=0)


def test_no_epoch_starts_that_could_apply_nothing() -> None:
    """With two steps left a paused run that is resumed is over: one round trains, two apply."""
    driver = make_driver(total_steps=12)
    driver.ok("set_paused", paused=True)
    driver.ok("update", progress=Progress(10, 0, 0).to_bytes().hex())
    driver.ok("set_paused", paused=False)
    assert driver.account.run_state is RunState.Finished


def test_health_check_drops_who_was_not_seen() -> None:
    driver = make_driver(min_clients=1)
    driver.warm_up([0, 1, 2])
    driver.attest([0, 1, 2])
    assert driver.apply("health_check", client=0, index=2) == "InvalidHealthCheck"
    driver.attest([0, 1, 2], missing=0b100)
    driver.tick_at_deadline()
    account = driver.account
    assert account.current_round.height == 2
    assert [is_client_unhealthy(account, index) for index in (0, 1, 2, 3, 255)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert driver.apply("health_check", client=0, index=1) == "InvalidHealthCheck"
    assert driver.apply("health_check", client=9, index=2) == "SignerNotAClient"
    driver.ok("health_check", client=0, index=2)
    dropped = driver.account.epoch_clients[2]
    assert (dropped.state, dropped.exited_height) == (ClientState.Dropped, 2)
    assert driver.apply("health_check", client=0, index=2) == "InvalidHealthCheck"
    driver.attest([0, 1, 2], missing=0b100)
    assert driver.account.current_round.height == 3, "complete without the client that is gone"
    assert driver.account.current_round.healthy_indices == (0, 1)


def test_nobody_is_dropped_on_the_word_of_less_than_a_quorum() -> None:
    driver = make_driver(min_clients=1)
    driver.warm_up([0, 1, 2, 3, 4, 5])
    driver.attest([0, 1, 2, 3, 4, 5])
    driver.attest([0, 1, 2], missing=0b100000)
    driver.tick_at_deadline()
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Cooldown, "3 of 6 witnesses are no quorum"


def test_points_follow_attested_rounds() -> None:
    driver = make_driver(rate=100)
    driver.warm_up([0, 1, 2])
    for height in range(4):
        missing = 0b100 if height in (1, 2, 3) else 0
        driver.attest([0, 1, 2], missing=missing)
        if driver.account.run_state is RunState.RoundWitness:
            driver.tick_at_deadline()
    assert [client.attested_rounds for client in driver.account.epoch_clients] == [3, 3, 0]
    driver.ok("leave_run", client=1)
    driver.tick_at_deadline()
    driver.tick_at_deadline()
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.WaitingForMembers
    assert earned(driver) == [50, 50, 0], "who left keeps what it earned"
    assert all(client.attested_rounds == 0 for client in driver.account.epoch_clients)


def test_new_rates_count_from_the_next_epoch() -> None:
    driver = make_driver(rate=100)
    driver.warm_up([0, 1])
    driver.ok("set_future_epoch_rates", earning_rate_total_shared=9)
    assert driver.account.current_rates.earning_rate_total_shared == 100
    assert driver.account.future_rates.slashing_rate_per_client == 7
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    assert sum(earned(driver)) == 100
    driver.warm_up([0, 1])
    assert driver.account.current_rates.earning_rate_total_shared == 9


def test_checkpoints_move_the_place_a_model_comes_from() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    hub = {"kind": int(CheckpointKind.Hub), "repo": "someone/model", "revision": "abc"}
    driver.ok("checkpoint", client=0, **hub)
    assert driver.account.model.checkpoint_kind is CheckpointKind.Hub
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    driver.ok("checkpoint", client=1, **{**hub, "repo": "someone/better"})
    model = driver.account.model
    assert model.checkpoint_kind is CheckpointKind.P2P
    assert model.checkpoint_origin is CheckpointKind.Hub
    assert (model.checkpoint_repo, model.checkpoint_revision) == ("someone/better", "abc")
    driver.ok("checkpoint", client=1, **{**hub, "kind": int(CheckpointKind.Gcs)})
    assert driver.account.model.checkpoint_kind is CheckpointKind.P2PGcs
    driver.ok("leave_run", client=1)
    driver.ok("checkpoint", client=1, **hub)  # it left after the epoch it finished
    driver.join(5, 6)
    driver.tick_at_deadline()
    assert driver.apply("checkpoint", client=1, **hub) == "ClientNotInEpoch"
    assert driver.apply("checkpoint", client=99, **hub) == "SignerNotAClient"


@pytest.mark.parametrize(
    ("kind", "repo"), [(0, "x"), (1, "x"), (3, "x"), (5, "x"), (7, "x"), (9, "x"), (2, "")]
)
def test_checkpoints_that_name_no_place_are_refused(kind: int, repo: str) -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    assert driver.apply("checkpoint", client=0, kind=kind, repo=repo, revision="") == "InvalidCheckpoint"


def test_witnesses_are_checked() -> None:
    driver = make_driver(min_clients=2, witness_nodes=2)
    driver.warm_up([0, 1, 2, 3])
    driver.attest([0, 1, 2, 3])
    witnesses = {c: w for c in range(4) if (w := make_witness(driver, c)) is not None}
    assert len(witnesses) == 2
    first, second = witnesses.values()
    outsider = next(c for c in range(4) if c not in witnesses)
    assert driver.apply("witness", **{**first, "client": outsider}) == "InvalidWitness"
    assert driver.apply("witness", **{**first, "index": second["index"]}) == "InvalidWitness"
    assert driver.apply("witness", **{**first, "index": 65535}) == "InvalidWitness"
    assert driver.apply("witness", **{**first, "participants": [31, 0, 0, 0]}) == "InvalidWitness"
    assert driver.apply("witness", **{**first, "client": 77}) == "SignerNotAClient"
    driver.ok("witness", **first)
    assert driver.apply("witness", **first) == "DuplicateWitness"
    stored = driver.account.current_round.witnesses[0]
    assert stored.index == first["index"]
    assert stored.participants == 0b1111
    assert stored.broadcast_bloom == tuple(first["broadcast_bloom"])
    assert stored.state_digest.hex() == first["state_digest"]
    assert driver.account.find_epoch_client(get_signer(outsider)) is not None


def test_the_first_round_and_apply_only_rounds_attest_nobody() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    witness = make_witness(driver, 0)
    assert witness is not None
    assert driver.apply("witness", **{**witness, "participants": [1, 0, 0, 0]}) == "InvalidWitness"


def test_keys_are_fixed_while_a_client_is_in_an_epoch() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    assert driver.apply("join_run", **make_join(0, version=1)) == "ClientKeysInUse"
    driver.ok("join_run", **make_join(0))
    driver.ok("leave_run", client=0)
    driver.ok("join_run", **make_join(0, version=1))
    assert driver.apply("join_run", **make_join(3, kind=4)) == "InvalidAddressHint"


def test_a_run_holds_256_wallets() -> None:
    driver = make_driver()
    driver.join(*range(256))
    assert driver.apply("join_run", **make_join(256)) == "ClientsFull"
    driver.ok("join_run", **make_join(255))


def test_settling_cannot_overflow_an_entry() -> None:
    driver = make_driver(rate=2**64 - 1)
    driver.warm_up([0, 1])
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    driver.warm_up([0, 1])
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    driver.warm_up([0, 1])
    run_until(driver, RunState.WaitingForMembers, [0, 1], max_rounds=300)
    assert earned(driver) == [2**64 - 1] * 2
