"""The rule book and the program are two writings of one law: every byte after every event is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conformance import Difference, Pair, make_driver, minimise, minimise_difference, play_random_history
from histories import Character
from program_driver import PROGRAM, get_instruction_names
from rulebook_driver import Driver, make_join, make_run_config, make_witness, rules
from solders.compute_budget import set_compute_unit_limit
from vector_format import compute_digest, pack_history, read_history, unpack_runs

from psyche_py.coordinator import tick
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState
from psyche_py.coordinator.model import CoordinatorConfig

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_agree_to_the_byte(seed: int) -> None:
    pair = Pair(41)
    play_random_history(pair, seed, Character(num_clients=[2, 3, 4, 6, 9, 40][seed % 6]))
    assert pair.coverage.steps > 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_thousand_steps_agree_to_the_byte() -> None:
    """What `make bench-conformance` does, and that its histories leave no instruction out."""
    pair, seed = Pair(), 0
    while pair.coverage.steps < 50_000:
        play_random_history(pair, seed)
        seed += 1
    instructions = get_instruction_names("coordinator")
    assert set(pair.coverage.accepted) == instructions
    assert set(pair.coverage.refused) == instructions
    assert len(pair.coverage.rules) > 120, sorted(pair.coverage.rules)
    assert max(pair.program.units.values()) < 200_000, pair.program.units


# ---- the tools themselves: they find a difference when there is one ----------------------------------------


class GenerousDriver(Driver):
    """A rule book with a mistake: whoever leaves is told it was not there, if its number is even."""

    def _leave_run(self, client: int) -> Any:
        account = super()._leave_run(client)
        return self.account if client % 2 == 0 else account


def find_any_difference(pair: Pair) -> Difference:
    for seed in range(50):
        try:
            play_random_history(pair, seed, Character(4, is_extreme=False))
        except Difference as difference:
            return difference
    pytest.fail("the mistake was not found")


def test_a_mistake_is_found_and_its_history_shortened() -> None:
    pair = Pair(
        6, lambda: GenerousDriver(rules.process_init("run", "test"), get_signer=make_driver().get_signer)
    )
    found = find_any_difference(pair)
    steps = pair.coverage.steps
    short = minimise_difference(pair, found)
    assert [name for name, _ in short.events] == ["join_run", "leave_run"]
    assert short.what == "['nonce', 'entries'] differ after leave_run"
    assert pair.coverage.steps == steps, "what was tried while shortening is not what was compared"
    written = read_history(json.loads(pack_history("difference", short.events)))
    assert written == [tuple(event) for event in short.events]
    assert pair.replay(written) is not None
    assert Pair(6).replay(written) is None, "without the mistake there is no difference"


def test_a_crash_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side: an index out of range in the rule book, compute units that run out on chain."""

    def crash(*args: Any, **named: Any) -> Any:
        raise IndexError("beyond the last")

    pair = Pair(6)
    with monkeypatch.context() as patch:
        patch.setattr(rules, "process_leave", crash)
        short = minimise_difference(pair, find_any_difference(pair))
        assert [name for name, _ in short.events] == ["leave_run"]
        assert "the rule book crashes" in short.what
        written = json.loads(pack_history("difference", short.events))
        assert written["steps"][-1][2] == "crash: IndexError('beyond the last')"
    pair.start()
    pair.program.request = [set_compute_unit_limit(200)]
    with pytest.raises(Difference, match="the program crashes"):
        pair.apply("leave_run", client=0)


def test_another_refusal_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "MIN_LAST_STEP", 5)
    pair = Pair(10)
    with pytest.raises(Difference, match="epoch_state"):
        for seed in range(200):
            play_random_history(pair, seed, Character(2, is_extreme=False))


def test_shortening_keeps_what_is_needed() -> None:
    events = [(str(number), {}) for number in range(100)]
    needed = {"3", "50", "51", "97"}
    assert {name for name, _ in minimise(events, lambda rest: needed <= {name for name, _ in rest})} == needed
    assert minimise(events[:1], lambda rest: True) == []


def test_histories_survive_being_written() -> None:
    pair = Pair(41)
    play_random_history(pair, 3, Character(5))
    events = [tuple(event) for event in pair.rules.log]
    content = json.loads(pack_history("a history", events))
    assert read_history(content) == events
    assert unpack_runs(content["bytes"], ACCOUNT_SIZE) == pair.rules.data
    assert content["steps"][-1][3] == compute_digest(pair.rules.data)


# ---- the largest run there can be --------------------------------------------------------------------------


def test_local_steps_and_verification_exclude_each_other_in_any_order() -> None:
    """Nobody could recompute what is to be verified; told in one update or in two."""
    pair = Pair(4)
    plain, verified = make_run_config(), make_run_config(verification_percent=5)

    def update(config: CoordinatorConfig | None, local_steps: int | None) -> str | None:
        parts = {} if config is None else {"config": config.to_bytes().hex()}
        if local_steps is not None:
            parts["model"] = replace(plain.model, local_steps=local_steps).to_bytes().hex()
        return pair.apply("update", **parts)

    broken = "ModelSanityCheckFailed"
    assert update(verified.config, 2) == broken
    assert update(verified.config, 1) is None
    assert update(None, 2) == broken
    assert update(plain.config, 2) is None
    assert update(verified.config, None) == broken
    assert update(verified.config, 64) == broken
    assert update(verified.config, 0) is None
    assert pair.rules.account.model.local_steps == 0


def test_a_full_run_agrees_to_the_byte() -> None:
    """256 clients, 32 witnesses: the largest account there can be, and what it costs."""
    pair = Pair()

    def ok(name: str, **arguments: Any) -> None:
        assert pair.apply(name, **arguments) is None

    config = make_run_config(init_min_clients=256, min_clients=200, warmup_time=50)
    ok("update", config=config.config.to_bytes().hex(), model=config.model.to_bytes().hex())
    ok("set_future_epoch_rates", earning_rate_total_shared=10**9 + 7, slashing_rate_per_client=1)
    ok("set_paused", paused=False)
    for client in range(256):
        ok("join_run", **make_join(client))
    assert pair.apply("join_run", **make_join(256)) == "ClientsFull"
    ok("advance", seconds=2, slots=4)
    ok("tick")
    for client in range(256):
        ok("warmup_witness", client=client, index=client)
    assert pair.rules.account.run_state is RunState.RoundTrain
    for height in range(4):
        assert pair.rules.account.current_round.height == height
        ok("advance", seconds=1, slots=2)
        for client in range(256):
            witness = make_witness(pair.rules, client, missing=1 << 255 if height else 0)
            if witness is not None:
                ok("witness", **witness)
        if height in (1, 2):  # nobody saw client 255
            assert pair.rules.account.run_state is RunState.RoundWitness
            ok("advance", seconds=3, slots=6)
            ok("tick")
        if height == 2:  # once it is dropped, the witnesses' rounds are complete without it
            ok("health_check", client=0, index=255)
    ok("set_paused", paused=True)
    while pair.rules.account.run_state is not RunState.Paused:
        ok("advance", seconds=10, slots=20)
        ok("tick")
    assert sum(entry.earned for entry in pair.rules.account.entries) == 10**9 + 7
    assert max(pair.program.units.values()) < 200_000, pair.program.units
