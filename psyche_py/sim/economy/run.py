"""Plays a run whose people work, cheat, accuse and judge: epochs, rounds, points, bonds."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from psyche_py.coordinator.committee import compute_tie_breaker_seats, compute_verifiers
from psyche_py.coordinator.duties import compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ROUND_STATES, ClientState, RunState
from psyche_py.coordinator.state import CoordinatorAccount, Dispute
from psyche_py.coordinator.witness import is_client_unhealthy
from psyche_py.sim.economy.conduct import HONEST_CASE, Case, Person, Result
from psyche_py.sim.economy.settings import EconomySettings, make_economy_config
from psyche_py.sim.economy.side import HINT, Side

BLOOM = [0] * 16
DIGEST = hashlib.sha256(b"everybody has the same weights").hexdigest()
WORD = (1 << 64) - 1


class EconomyError(AssertionError):
    """The rule book refused what the simulation holds to be allowed: the simulation is wrong."""


@dataclass(slots=True)
class Wallet:
    """What a wallet has been paid and has lost, in points; ``bond`` lies with the treasurer now."""

    owner: Person
    earned: int = 0
    slashed: int = 0
    bond: int = 0
    deposited: int = 0
    paid_by_bond: int = 0
    convictions: int = 0

    @property
    def balance(self) -> int:
        """Points to claim, and the bond, less what was put in. A debt beyond the bond is never paid."""
        return max(self.earned - self.slashed, 0) + self.bond - self.deposited


@dataclass(slots=True)
class Tally:
    """What happened. ``outcomes`` are counted by (who was accused, how it ended)."""

    trained_rounds: int = 0
    checks: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (who sends it: somebody that "looked" or somebody that "invents", what the rule book says to it)."""
    open_disputes: list[int] = field(default_factory=list)
    """At the end of every round."""
    dropped: int = 0
    presence: list[frozenset[int]] = field(default_factory=list)
    """Numbers of the people whose results of a trained round counted."""


class EconomyRun:
    """``people`` are clients from the first epoch on. ``rng`` draws cases, lazy rounds, orders of votes."""

    def __init__(
        self, side: Side, settings: EconomySettings, people: Sequence[Person], rng: random.Random
    ) -> None:
        self.people, self.settings, self.tally = list(people), settings, Tally()
        self._side, self._rng = side, rng
        self.wallets: dict[int, Wallet] = {}
        self._next_wallet = 0
        for person in self.people:
            self._open_wallet(person)
        self._in_epoch: dict[int, Person] = {}
        self._results: dict[int, dict[int, Result]] = {}
        self._accused: dict[bytes, tuple[Case, Person, Person]] = {}
        """Open disputes by evidence: what a look finds, accuser, trainer."""
        self._ballots: dict[bytes, set[int]] = {}
        """Their tie-breakers (epoch client indices) that have made up their minds, in time or too late."""
        self._set_up()

    # ---- reading --------------------------------------------------------------------------------------

    @property
    def account(self) -> CoordinatorAccount:
        """The run now."""
        return self._side.account

    def get_balance(self, person: Person) -> int:
        """Points over all wallets that somebody has used."""
        return sum(self.wallets[wallet].balance for wallet in person.wallets)

    def _is_healthy(self, index: int) -> bool:
        return bool(self.account.record["epoch_state"]["clients"]["state"][index] == ClientState.Healthy)

    # ---- sending --------------------------------------------------------------------------------------

    def _ok(self, name: str, **arguments: object) -> None:
        error = self._side.apply(name, **arguments)
        if error is not None:
            raise EconomyError(f"{name}: {error}")

    def _pass_time(self, seconds: int) -> None:
        self._ok("advance", seconds=seconds, slots=2 * seconds)

    def _set_up(self) -> None:
        settings = self.settings
        run_config = make_economy_config(settings, len(self.people))
        config, model = run_config.config.to_bytes().hex(), run_config.model.to_bytes().hex()
        self._ok("update", config=config, model=model)
        self._ok(
            "set_future_epoch_rates",
            earning_rate_total_shared=settings.compute_epoch_points(len(self.people)),
            slashing_rate_per_client=settings.slash_points,
        )
        self._ok("set_paused", paused=False)

    def _open_wallet(self, person: Person) -> None:
        person.wallet = self._next_wallet
        person.wallets.append(person.wallet)
        self.wallets[person.wallet] = Wallet(person)
        self._next_wallet += 1

    # ---- epochs ---------------------------------------------------------------------------------------

    def play(self) -> None:
        """All epochs."""
        for _ in range(self.settings.num_epochs):
            self._start_epoch()
            for _ in range(self.settings.epoch_rounds - 1):
                if self.account.run_state not in ROUND_STATES:
                    break
                self._play_round()
            self._pass_time(self.account.config.epoch_time)
            while self.account.run_state in ROUND_STATES:
                self._play_round()
            self._end_epoch()

    def _start_epoch(self) -> None:
        for person in self.people:
            self._join(person)
        self._pass_time(self.account.config.waiting_for_members_extra_time)
        self._ok("tick")
        by_signer = {self._side.get_signer(p.wallet): p for p in self.people}
        self._in_epoch = {c.index: by_signer[c.signer] for c in self.account.epoch_clients}
        self._results.clear()
        for index, person in self._in_epoch.items():
            self._ok("warmup_witness", client=person.wallet, index=index)
        if self.account.run_state is not RunState.RoundTrain:
            raise EconomyError(f"the epoch begins in {self.account.run_state.name}")

    def _join(self, person: Person) -> None:
        """Into the next epoch, with as much bonded as the run asks for."""
        wallet = self.wallets[person.wallet]
        key = hashlib.sha256(f"p2p {person.wallet}".encode()).hexdigest()
        arguments: dict[str, object] = {"client": person.wallet, "p2p_key": key, "address_hint": HINT.hex()}
        missing = self.settings.bond_points - wallet.bond
        if missing > 0:
            wallet.deposited += missing
            wallet.bond += missing
        if self.settings.bond_points:
            self._ok("bond", bond=person.wallet, user=person.wallet, amount=wallet.bond)
            arguments["bond"] = person.wallet
        self._ok("join_run", **arguments)

    def _end_epoch(self) -> None:
        """Last votes, points, debts; who was ejected thinks about its next wallet."""
        self._cast_votes()
        config = self.account.config
        ejected = {c.index for c in self.account.epoch_clients if c.state is ClientState.Ejected}
        self.tally.dropped += sum(c.state is ClientState.Dropped for c in self.account.epoch_clients)
        self._pass_time(config.cooldown_time + config.max_round_train_time)
        self._ok("tick")
        for person in self.people:
            self._settle(person.wallet)
        for index in ejected:
            person = self._in_epoch[index]
            person.convictions += 1
            self.wallets[person.wallet].convictions += 1
            if person.moves_on:
                self._open_wallet(person)

    def _settle(self, number: int) -> None:
        """Somebody has the wallet's bond pay its debt; then note what the account says."""
        wallet, entry = self.wallets[number], self.account.find_entry(self._side.get_signer(number))
        if entry is None:
            raise EconomyError(f"wallet {number} has lost its entry")
        debt = min(self.account.entries[entry].debt, wallet.bond)
        if debt:
            self._ok("settle_debt", user=number, points=debt)
            wallet.bond -= debt
            wallet.paid_by_bond += debt
        seen = self.account.entries[entry]
        wallet.earned, wallet.slashed = seen.earned, seen.slashed

    # ---- a round --------------------------------------------------------------------------------------

    def _play_round(self) -> None:
        height = self.account.current_round.height
        self._pass_time(1)
        if not self.account.current_round.apply_only:
            self._train(height)
        self._cast_votes()
        self._verify(height)
        self.tally.open_disputes.append(sum(d.is_open for d in self.account.disputes))
        self._attest()
        self._check_health()
        if self.account.run_state in ROUND_STATES and self.account.current_round.height == height:
            self._pass_time(self.account.config.round_witness_time + self.account.config.max_round_train_time)
            self._ok("tick")
            if self.account.run_state is RunState.RoundWitness:
                self._pass_time(self.account.config.round_witness_time)
                self._ok("tick")

    def _train(self, height: int) -> None:
        """Everybody that has a batch delivers, or does what it does instead."""
        account, results = self.account, {}
        verifiers = set(compute_verifiers(account, account.current_round))
        present = set()
        for index in account.current_round.healthy_indices:
            person = self._in_epoch[index]
            person.rounds_present += 1
            if index not in verifiers:
                results[index] = self._work(person)
                if results[index].is_delivered:
                    present.add(person.number)
        self._results[height] = results
        self._results.pop(height - 4, None)
        self.tally.trained_rounds += 1
        self.tally.presence.append(frozenset(present))

    def _work(self, person: Person) -> Result:
        cheat = person.cheat
        if cheat is None or (cheat.period > 1 and self._rng.randrange(cheat.period)):
            person.work += 1.0
            return Result()
        person.work += cheat.work
        return Result(self._rng.choice(cheat.cases), cheat.is_delivered)

    def _verify(self, height: int) -> None:
        """The verifiers of this round look at the results of the round before."""
        results = self._results.get(height - 1, {})
        for duty in compute_duties(self.account, height):
            result = results.get(duty.trainer)
            if result is None or not result.is_delivered or not self._is_healthy(duty.verifier):
                continue
            verifier, trainer = self._in_epoch[duty.verifier], self._in_epoch[duty.trainer]
            reason = self._look(verifier, trainer, result)
            if reason:
                self._accuse(duty.verifier, duty.trainer, height - 1, reason, result.case)

    def _look(self, verifier: Person, trainer: Person, result: Result) -> int:
        """The reason for which the verifier accuses; 0: it does not."""
        cheat = verifier.cheat
        if verifier.is_friend(trainer):
            return 0
        if cheat is not None and cheat.accusation:
            return cheat.accusation
        if cheat is not None and not cheat.verifies:
            return 0
        verifier.work += 1.0
        self.tally.checks += 1
        return result.case[verifier.precision]

    def _accuse(self, verifier: int, trainer: int, height: int, reason: int, case: Case) -> None:
        accuser, accused = self._in_epoch[verifier], self._in_epoch[trainer]
        text = f"{self.account.epoch} {height} {verifier} {trainer}"
        evidence = hashlib.sha256(text.encode()).digest()
        error = self._side.apply(
            "verdict",
            client=accuser.wallet,
            index=verifier,
            trainer=trainer,
            height=height,
            reason=reason,
            evidence_hash=evidence.hex(),
        )
        # a second accusation of one that is accused already, or too many accused at a time
        is_invented = accuser.cheat is not None and accuser.cheat.accusation != 0
        self.tally.verdicts["invents" if is_invented else "looked", error or "accepted"] += 1
        if error is None:
            self._accused[evidence] = (case, accuser, accused)
            self._ballots[evidence] = set()

    def _cast_votes(self) -> None:
        """The tie-breakers of this round look at what is disputed, in any order, and say what they say."""
        for dispute in self.account.disputes:
            round_ = self.account.get_round_at(dispute.judge_height) if dispute.judge_height else None
            if not dispute.is_open or round_ is None or round_.height != self.account.current_round.height:
                continue
            judges = [
                i for i in compute_tie_breaker_seats(round_) if is_tie_breaker(self.account, dispute, i)
            ]
            self._rng.shuffle(judges)
            for index in judges:
                self._vote(dispute, index)
        self._note_outcomes()

    def _vote(self, dispute: Dispute, index: int) -> None:
        voter, ballots = self._in_epoch[index], self._ballots[dispute.evidence_hash]
        if not self._is_healthy(index) or index in ballots:
            return
        case, accuser, accused = self._accused[dispute.evidence_hash]
        if voter.is_friend(accused):
            is_guilty = False
        elif voter.is_friend(accuser):
            is_guilty = True
        elif voter.cheat is not None and voter.cheat.votes_blindly:
            is_guilty = False
        else:
            voter.work += 1.0  # votes cross on their way: who comes too late has worked all the same
            is_guilty = case[voter.precision] != 0
        ballots.add(index)
        if self.account.find_open_dispute(dispute.evidence_hash):
            evidence = dispute.evidence_hash.hex()
            arguments = {"client": voter.wallet, "index": index, "evidence_hash": evidence}
            self._ok("vote", is_guilty=is_guilty, **arguments)

    def _note_outcomes(self) -> None:
        for dispute in self.account.disputes:
            if dispute.is_open or dispute.evidence_hash not in self._accused:
                continue
            case, _, _ = self._accused.pop(dispute.evidence_hash)
            whom = "cheat" if case != HONEST_CASE else "honest"
            self.tally.outcomes[whom, dispute.state.name] += 1
            del self._ballots[dispute.evidence_hash]

    def _attest(self) -> None:
        """Every elected witness says who delivered in the round before."""
        account = self.account
        current, previous = account.current_round, account.previous_round
        possible = previous.healthy if previous is not None and not previous.apply_only else 0
        results = self._results.get(current.height - 1, {})
        late = {index for index, result in results.items() if not result.is_delivered}
        for index in current.elected_indices:
            if not self._is_healthy(index) or self.account.current_round.height != current.height:
                continue
            if self.account.run_state not in ROUND_STATES:
                continue
            witness = self._in_epoch[index]
            missing = [i for i in late if not witness.is_friend(self._in_epoch[i])]
            seen = possible & ~sum(1 << i for i in missing)
            self._ok(
                "witness",
                client=witness.wallet,
                index=index,
                step=current.step,
                participants=[seen >> 64 * i & WORD for i in range(4)],
                broadcast_bloom=BLOOM,
                broadcast_merkle=DIGEST,
                state_digest=DIGEST,
            )

    def _check_health(self) -> None:
        """Who was not seen to deliver is out for the rest of the epoch; anybody may say so."""
        account = self.account
        if account.run_state not in ROUND_STATES or not self._results:
            return
        late = self._results.get(account.current_round.height - 2, {})
        for index, result in late.items():
            if not result.is_delivered and is_client_unhealthy(self.account, index):
                teller = next(i for i in self._in_epoch if self._is_healthy(i) and i != index)
                self._ok("health_check", client=self._in_epoch[teller].wallet, index=index)
