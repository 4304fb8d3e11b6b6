"""Plays runs with disputes step by step, on the rule book alone or side by side with the program.

Client numbers, entries and epoch client indices are the same here: clients 0 to n - 1 join in order.
"""

from __future__ import annotations

from typing import Any

from conformance import Pair
from rulebook_driver import Driver, make_join, make_run_config, make_witness

from psyche_py.coordinator.committee import compute_tie_breaker_seats
from psyche_py.coordinator.duties import compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.state import CoordinatorAccount, Dispute

RATE, SLASH = 10_000, 700
FRAUD, REFUSAL = 6, 2


class Court:
    """A run whose clients are honest but for what a test has them do."""

    def __init__(self, side: Driver | Pair, num_clients: int, **config: int) -> None:
        self.side = side
        self.num = num_clients
        changes = {"verification_percent": 50, "max_refusals": 1, "epoch_time": 1000, **config}
        base = make_run_config(init_min_clients=max(num_clients, 2), min_clients=1)
        record = base.config.to_record()
        for name, value in changes.items():
            record[name] = value
        self.ok("update", config=record.tobytes().hex(), model=base.model.to_bytes().hex())
        self.ok("set_future_epoch_rates", earning_rate_total_shared=RATE, slashing_rate_per_client=SLASH)
        self.ok("set_paused", paused=False)
        self.num_hashes = 0

    @property
    def driver(self) -> Driver:
        """The rule book's side."""
        return self.side.rules if isinstance(self.side, Pair) else self.side

    @property
    def account(self) -> CoordinatorAccount:
        """The run now."""
        return self.driver.account

    def ok(self, name: str, **arguments: Any) -> None:
        """An event that must be accepted."""
        error = self.side.apply(name, **arguments)
        assert error is None, f"{name}: {error}"

    def refuse(self, error: str, name: str, **arguments: Any) -> None:
        """An event that must be refused like this."""
        assert self.side.apply(name, **arguments) == error

    def wait(self, seconds: int) -> None:
        """Let time pass, and then act."""
        self.ok("advance", seconds=seconds, slots=2 * seconds)
        self.ok("tick")

    def start_epoch(self) -> None:
        """Up to the first round."""
        for client in range(self.num):
            self.ok("join_run", **make_join(client))
        self.wait(2)
        for client in range(self.num):
            self.ok("warmup_witness", client=client, index=client)
        assert self.account.run_state is RunState.RoundTrain

    def play_round(self) -> None:
        """Everybody attests everything, and the next round begins (or the epoch ends)."""
        height, step = self.account.current_round.height, self.account.step
        self.ok("advance", seconds=1, slots=2)
        gone = sum(1 << c.index for c in self.account.epoch_clients if c.state is not ClientState.Healthy)
        for client in range(self.num):
            is_in = self.account.epoch_clients[client].state is ClientState.Healthy
            witness = make_witness(self.driver, client, missing=gone)
            if self.account.step == step and is_in and witness is not None:
                self.ok("witness", **witness)
        if self.account.step == step:
            self.ok("tick")
        assert self.account.run_state is RunState.Cooldown or self.account.current_round.height == height + 1

    def play_until(self, height: int) -> None:
        """Rounds up to this one."""
        while self.account.current_round.height < height:
            self.play_round()

    def close_epoch(self) -> None:
        """Its time is over: the round that runs is its last that trains."""
        self.ok("advance", seconds=self.account.config.epoch_time, slots=9)

    def end_epoch(self) -> None:
        """Through whatever is left of it."""
        self.close_epoch()
        while self.account.run_state is not RunState.Cooldown:
            self.play_round()
        self.wait(self.account.config.cooldown_time + self.account.config.max_round_train_time)
        assert self.account.run_state is RunState.WaitingForMembers

    def play_until_duty(self) -> None:
        """Rounds until somebody has to look at somebody: small runs have no verifiers while they judge."""
        while not compute_duties(self.account, self.account.current_round.height):
            self.play_round()

    def get_points(self, index: int) -> tuple[int, int, int]:
        """What an epoch client has earned, was slashed, and owes."""
        entry = self.account.entries[self.account.epoch_clients[index].entry]
        return entry.earned, entry.slashed, entry.debt

    # ---- disputes -----------------------------------------------------------------------------------------

    def make_accusation(self, number: int = 0, *, late: int = 0, reason: int = FRAUD) -> dict[str, Any]:
        """Arguments of the verdict of the duty of this number in the round that was ``late`` rounds ago.

        Those whose verifier has left, or whose trainer was ejected, are not counted.
        """
        self.num_hashes += 1
        height, clients = self.account.current_round.height - late, self.account.epoch_clients
        duty = [
            duty
            for duty in compute_duties(self.account, height)
            if clients[duty.verifier].state is ClientState.Healthy
            and clients[duty.trainer].state is not ClientState.Ejected
        ][number]
        return {
            "client": duty.verifier,
            "index": duty.verifier,
            "trainer": duty.trainer,
            "height": height - 1,
            "reason": reason,
            "evidence_hash": self.num_hashes.to_bytes(32, "big").hex(),
        }

    def accuse(self, number: int = 0, *, late: int = 0, reason: int = FRAUD) -> Dispute:
        """The verifier does it."""
        accusation = self.make_accusation(number, late=late, reason=reason)
        self.ok("verdict", **accusation)
        return self.find(bytes.fromhex(accusation["evidence_hash"]))

    def find(self, evidence_hash: bytes) -> Dispute:
        """The dispute as it stands now."""
        (found,) = [d for d in self.account.disputes if d.evidence_hash == evidence_hash]
        return found

    def find_judges(self, dispute: Dispute) -> list[int]:
        """Those who may vote, by their places in the committee."""
        dispute = self.find(dispute.evidence_hash)
        round_ = self.account.get_round_at(dispute.judge_height)
        assert round_ is not None
        seats = compute_tie_breaker_seats(round_)
        return [index for index in seats if is_tie_breaker(self.account, dispute, index)]

    def make_ballot(self, dispute: Dispute, index: int, is_guilty: bool) -> dict[str, Any]:
        """Arguments of a vote."""
        evidence = dispute.evidence_hash.hex()
        return {"client": index, "index": index, "evidence_hash": evidence, "is_guilty": is_guilty}

    def vote(self, dispute: Dispute, is_guilty: bool, num: int | None = None) -> Dispute:
        """The first ``num`` judges, or as many as decide, say so."""
        for index in self.find_judges(dispute)[:num]:
            if self.find(dispute.evidence_hash).is_open:
                self.ok("vote", **self.make_ballot(dispute, index, is_guilty))
        return self.find(dispute.evidence_hash)


def open_court(pair: Pair, num: int, **config: int) -> Court:
    """A new run in its first round."""
    pair.start()
    court = Court(pair, num, **config)
    court.start_epoch()
    return court
