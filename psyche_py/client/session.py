"""Our part in one epoch: rounds seen, announcements heard, what to apply, train and attest.

Pure, like the machine that owns it. The pipeline of one round R (protocol.md, "Kept: overlap"):

    apply the results of R-2, accepted by the witnesses stored in R-1
    train our batch of R, while the payloads of R-1 arrive
    announce Finished; the elected attest the results of R-1 when they, and all who do not attest, have
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psyche_py.client import actions as act
from psyche_py.client.attesting import WitnessWatch, is_anybody_busy, is_expecting, make_witness
from psyche_py.client.chain_forks import SeenRounds
from psyche_py.client.health import find_unseen
from psyche_py.client.rounds import RoundRecord, compute_apply_plan
from psyche_py.client.searches import Searches
from psyche_py.client.verification import Verification
from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.layout import ACTIVE, NUM_STORED_ROUNDS, ROUND_STATES, ClientState, RunState
from psyche_py.coordinator.repeats import (
    Backlog,
    Repeats,
    SampleRange,
    process_outcome,
    process_round,
)
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import Round
from psyche_py.coordinator.witness import compute_attested_clients
from psyche_py.p2p.message import Finished, RoundHeader, TrainingResult, encode_message

KEPT_ROUNDS = 5
"""Payloads are needed for two rounds by us and a little longer by peers that lag."""
KEPT_ROUNDS_TO_JUDGE = ROUNDS_TO_JUDGE + 2
"""A dispute is judged from weights that the results of the round before lead to."""
EARLY_ROUNDS = 2
MAX_EARLY = 1024
"""Announcements kept for rounds that the account has not shown us yet."""

Actions = list[act.Action]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are: wallet, mesh key, and the run (all 32 bytes; ``run_id`` zero padded).

    ``address_hint``: where peers can dial this process (packed, 64 bytes).
    """

    signer: bytes
    p2p_key: bytes
    program_id: bytes
    run_id: bytes
    address_hint: bytes


class EpochSession:
    """See the module. ``index`` is our place in the account's epoch, ``start`` its start timestamp.

    ``lost`` says why we can no longer follow, once that is so.
    """

    def __init__(self, identity: Identity, account: CoordinatorAccount, index: int) -> None:
        self._identity = identity
        self.epoch, self.start, self.index = account.epoch, account.start_timestamp, index
        self.verification = Verification(account, identity.run_id, index)
        self.is_ready = False  # the model is in place
        self.is_saved = False
        self.lost = ""
        self.records: dict[int, RoundRecord] = {}
        self.newest = -1
        self.witnessed = -1
        self._applied = 1  # rounds 0 and 1 apply nothing
        self._trained = -1  # newest round whose training is over, one way or the other
        self._published = -1  # newest round that we have announced a result of
        self._in_work = -1  # the round that we train; -1 also when a fork has replaced it
        self._finished = -1
        self._prepared = -1  # newest round whose attestation has been prepared
        self._decoded = -1  # newest round in which what will be applied next has been decoded
        self._seen = SeenRounds()
        self._searches = Searches(account.epoch)
        self._watch = WitnessWatch(index)
        self._split: list[SampleRange] = []  # attested, but not as one result
        self._fetching: set[bytes] = set()
        self._early: dict[int, list[tuple[act.Heard, TrainingResult | Finished]]] = {}
        self._others: tuple[bytes, ...] = ()
        self._backlog = Backlog()
        self._loss = 0.0
        self._tokens_per_second = 0.0

    # ---- rounds -------------------------------------------------------------------------------------

    def see_rounds(self, account: CoordinatorAccount, out: Actions) -> None:
        """Make a record of every round that the ring shows and we have not seen."""
        current = account.current_round.height
        replaced = self._seen.find_replaced(account)
        if replaced is not None:
            self._unwind(replaced, out)
        if current <= self.newest:
            return
        for height in range(max(self.newest + 1, current + 1 - NUM_STORED_ROUNDS, 0), current + 1):
            round_ = account.get_round_at(height)
            if round_ is None:
                continue
            self._record_round(account, round_)
            self.newest = height
            self.verification.see_round(account, self.records[height], round_.random_seed)
            for heard, message in self._early.pop(height, ()):
                self._take(account, heard, message, out)
            if height == current:
                unseen = find_unseen(account, self.index)
                out.extend(act.SendHealthCheck(height, index) for index in unseen)
        self._forget_old_rounds(current, out)

    def _record_round(self, account: CoordinatorAccount, round_: Round) -> None:
        finished = self._seen.note(round_, self._backlog)
        assignment = compute_assignment(account, round_)
        record = RoundRecord(
            height=round_.height,
            step=round_.step,
            healthy=frozenset(round_.healthy_indices),
            assignment=assignment,
            repeats=self._assign_again(account, round_, assignment),
        )
        for index in finished.keys() & record.healthy:
            record.take_finished(index, finished[index])
        self.records[round_.height] = record

    def _unwind(self, first: int, out: Actions) -> None:
        """A fork of the chain has put other rounds in the place of ours from ``first`` on.

        What was trained for those is of other samples. Nobody announces two results of one round, so who has
        announced one sits the new round out, and its samples are assigned again.
        """
        out.append(act.Emit("warning", {"message": f"a fork of the chain has replaced round {first}"}))
        gone = {height: self.records.pop(height) for height in sorted(self.records) if height >= first}
        for record in gone.values():
            self._drop(record.get_payload_hashes(), out)
        self._backlog = self._seen.unwind(first, {h: record.finished for h, record in gone.items()})
        self.verification.unwind(first)
        self.newest, self.witnessed = first - 1, min(self.witnessed, first - 1)
        self._decoded = min(self._decoded, first - 1)
        self._trained = max(min(self._trained, first - 1), self._published)
        if self._in_work >= first:
            self._in_work = -1
            out.append(act.CancelTraining())

    def _assign_again(
        self, account: CoordinatorAccount, round_: Round, assignment: Mapping[int, SampleRange]
    ) -> Repeats:
        """Add what round h-2 lost to the backlog, and give out the part that round h trains again."""
        judged, attesting = self.records.get(round_.height - 2), account.get_round_at(round_.height - 1)
        if round_.height >= 2 and (judged is None or attesting is None):
            self.lost = f"did not see round {round_.height - 2} to its end"
            return {}
        if judged is not None and attesting is not None:
            attested = compute_attested_clients(account, attesting)
            self._backlog = process_outcome(self._backlog, judged.assignment, judged.repeats, attested)
        repeats, self._backlog = process_round(self._backlog, assignment, round_.batch_size)
        return repeats

    def _compute_lost(self, account: CoordinatorAccount) -> tuple[SampleRange, ...]:
        """Samples that the epoch, now over, leaves untrained for good.

        Those of its last two rounds are what the next epoch begins with, but for what they repeated.
        """
        last = account.current_round.height
        unapplied = [self.records[height] for height in (last - 1, last) if height in self.records]
        repeated = [part for record in unapplied for ranges in record.repeats.values() for part in ranges]
        return tuple(sorted([*self._backlog.waiting, *repeated, *self._split]))

    def _forget_old_rounds(self, current: int, out: Actions) -> None:
        kept = KEPT_ROUNDS_TO_JUDGE if self.verification.is_on else KEPT_ROUNDS
        for height in [h for h in self.records if h <= current - kept]:
            self._drop(self.records.pop(height).get_payload_hashes(), out)
        self._seen.forget(current - kept)
        self._early = {height: kept for height, kept in self._early.items() if height > current}
        self._searches.forget(self.records)

    def _drop(self, payload_hashes: Sequence[bytes], out: Actions) -> None:
        """Forget payloads, but for those of other rounds: who does no work sends the same bytes twice."""
        named = {digest for record in self.records.values() for digest in record.get_payload_hashes()}
        if gone := tuple(digest for digest in payload_hashes if digest not in named):
            out.append(act.DropPayloads(gone))

    def get_digests(self) -> set[bytes]:
        """Payloads that may be left in our store."""
        return {digest for record in self.records.values() for digest in record.get_payload_hashes()}

    # ---- announcements and payloads -----------------------------------------------------------------

    def hear(
        self, account: CoordinatorAccount, heard: act.Heard, message: TrainingResult | Finished, out: Actions
    ) -> None:
        """An announcement for this run and epoch; one for a round to come is kept for a while."""
        height = message.header.height
        if height <= self.newest:
            self._take(account, heard, message, out)
            return
        waiting = self._early.setdefault(height, []) if height <= self.newest + EARLY_ROUNDS else None
        if waiting is not None and len(waiting) < MAX_EARLY:
            waiting.append((heard, message))

    def _take(
        self, account: CoordinatorAccount, heard: act.Heard, message: TrainingResult | Finished, out: Actions
    ) -> None:
        index = message.header.sender_index
        record = self.records.get(message.header.height)
        clients = account.epoch_clients
        if index >= len(clients) or clients[index].p2p_key != heard.sender_key:
            if self._is_listed_in(account) and account.run_state in ROUND_STATES:
                out.append(act.ReportPeer(heard.sender_key, "message_of_another"))
            return
        if record is None or index not in record.healthy:
            return
        if isinstance(message, Finished):
            record.take_finished(index, message.state_digest)
            self._check_divergence(record)
            self._prepare_witness(account, record, out)
            return
        commitment = Commitment.decode(message.commitment)
        if record.assignment.get(index) != (message.batch_start, message.batch_end):
            out.append(act.ReportPeer(heard.sender_key, "result_of_anothers_batch"))
        elif record.add_candidate(index, commitment):
            if self.verification.is_on:
                frame = heard.sender_key + heard.signature + heard.body
                digest = commitment.compute_hash()
                record.frames[digest] = frame
                if record.height < self.newest:
                    record.late.add(digest)  # the next round's seed has drawn who looks at it
            self._fetch(account, record.height, index, commitment.payload_hash, out)

    def _fetch(
        self, account: CoordinatorAccount, height: int, index: int, digest: bytes, out: Actions
    ) -> None:
        """Get a payload, from its sender first."""
        if digest in self._fetching or index == self.index or not self._is_listed_in(account):
            return
        self._fetching.add(digest)
        sender = account.epoch_clients[index].p2p_key
        out.append(act.FetchPayload(height, digest, (sender, *self._get_others(account))))

    def _is_listed_in(self, account: CoordinatorAccount) -> bool:
        """Whether our indices are those of the account: while a job runs it may be of an epoch further on."""
        return account.start_timestamp == self.start

    def _get_others(self, account: CoordinatorAccount) -> tuple[bytes, ...]:
        if not self._others:
            own = self._identity.p2p_key
            self._others = tuple(c.p2p_key for c in account.epoch_clients if c.p2p_key != own)
        return self._others

    def take_payload(
        self, account: CoordinatorAccount, height: int, digest: bytes, valid: bool, out: Actions
    ) -> None:
        """A payload has arrived. One that is none is the fault of who announced it, not of who served it."""
        self._fetching.discard(digest)
        record = self.records.get(height)
        if record is None or not record.get_trainers(digest):
            self._drop((digest,), out)  # of a round or an epoch that is over
        elif valid:
            record.mark_verified(digest)
        else:
            out.append(act.Emit("warning", {"message": f"malformed payload {digest.hex()[:12]}"}))
            announcers = record.reject(digest) if self._is_listed_in(account) else ()
            keys = [account.epoch_clients[index].p2p_key for index in announcers]
            out.extend(act.ReportPeer(key, "payload_malformed") for key in keys)

    def give_up_fetch(self, account: CoordinatorAccount, height: int, digest: bytes, out: Actions) -> None:
        """Nobody served it in time; it is asked for again while it can still be attested.

        What was accepted and is yet to be applied is asked for in :meth:`choose_job`.
        """
        self._fetching.discard(digest)
        self._searches.note_unserved(height, digest)
        record = self.records.get(height)
        if record is not None and height >= self.newest - 1:
            for index in record.get_trainers(digest):
                self._fetch(account, height, index, digest, out)

    def take_opening(self, account: CoordinatorAccount, event: act.OpeningHeard) -> None:
        """Peers told what a witness's root is over. Only what the root proves is taken from it."""
        self._searches.end_question(event.height, event.root, event.num_results)
        record = self.records.get(event.height)
        if record is None:
            return
        attesting = account.get_round_at(event.height + 1)
        if not record.take_answers(attesting, event.root, event.num_results, event.answers):
            self._searches.note_unanswered(event.height, event.root, event.num_results)

    def _check_divergence(self, record: RoundRecord) -> None:
        """Compare our weights with what the others report for the same round (state digest)."""
        mine, majority = record.finished.get(self.index), record.majority
        if mine is not None and majority is not None and majority != mine:
            self.lost = f"our weights differ from the majority's at round {record.height}"

    # ---- the trainer --------------------------------------------------------------------------------

    def choose_job(self, account: CoordinatorAccount, out: Actions) -> act.Action | None:
        """What an idle trainer does next: apply what is due, then train, then save the epoch."""
        current = account.current_round
        if self._applied < current.height:
            return self._choose_apply(account, self._applied + 1, out)
        job = self.verification.choose_job(account)
        if job is not None:
            return job
        if account.run_state not in ROUND_STATES:
            judgement = self.verification.choose_judgement()
            if judgement is not None or self.verification.is_judging(account):
                return judgement
            healthy = [c.index for c in account.epoch_clients if c.state is ClientState.Healthy]
            is_first = bool(healthy) and self.index == healthy[0]
            return act.SaveEpoch(self.epoch, account.step, is_first, self._compute_lost(account))
        if account.run_state is RunState.RoundTrain and self._trained < current.height:
            record = self.records[current.height]
            batch = record.assignment.get(self.index)
            if batch is not None:
                before, repeats = self.records.get(current.height - 1), record.repeats.get(self.index, ())
                foreseen = before.get_foreseen(self.index) if before is not None else ()
                self._in_work = current.height
                return act.Train(current.height, current.step, self.index, *batch, foreseen, repeats)
            self._trained = current.height
        return self.verification.choose_judgement() or self._choose_preparation(account)

    def _choose_preparation(self, account: CoordinatorAccount) -> act.Action | None:
        """Once in a round, when all results of the one before are here and others still train."""
        height = account.current_round.height
        record = self.records.get(height - 1)
        if self._decoded >= height or record is None or is_expecting(account, record):
            return None
        self._decoded = height
        expected = record.get_expected()
        return act.PrepareApply(expected) if expected else None

    def _choose_apply(self, account: CoordinatorAccount, height: int, out: Actions) -> act.Action | None:
        """Apply the results of ``height - 2`` when all that count are here; else ask for what is missing."""
        record = self.records.get(height - 2)
        attesting = account.get_round_at(height - 1)
        if record is None or attesting is None or height not in self.records:
            self.lost = f"fell further behind than the ring of rounds reaches, at round {height}"
            return None
        plan = compute_apply_plan(account, record, attesting)
        others = self._get_others(account)
        for attestation in plan.unopened:
            said = [account.epoch_clients[index].p2p_key for index in attestation.witnesses]
            self._searches.ask(record.height, attestation, said, others, out)
        for index, digest in plan.accepted:
            record.adopt(index, digest)
        payloads = {index: record.get_payload_hash(digest) for index, digest in plan.accepted}
        missing = [(i, d) for i, d in payloads.items() if d not in record.verified_payloads]
        for index, digest in missing:
            self._fetch(account, record.height, index, digest, out)
        if plan.unopened or missing:
            if account.run_state not in ACTIVE:
                sought = [digest for _, digest in missing]
                self.lost = self._searches.explain_failure(record.height, plan.unopened, sought)
            return None
        self.verification.see_accepted(record.height, payloads)
        if plan.lost:
            self._split += plan.lost
            text = f"the witnesses of round {record.height} attested several results for samples {plan.lost}"
            out.append(act.Emit("warning", {"message": f"{text}: they are lost"}))
        digests = tuple(payloads.values())
        return act.Apply(height, self.records[height].step, digests, plan.trained, plan.untrained)

    def compute_unapplied(self, account: CoordinatorAccount) -> tuple[SampleRange, ...]:
        """Samples, once the epoch is over, that are neither in our weights nor trained again later."""
        parts = set(self._compute_lost(account))
        for height in range(self._applied + 1, account.current_round.height + 1):
            record, attesting = self.records.get(height - 2), account.get_round_at(height - 1)
            if record is not None and attesting is not None:
                parts.update(record.get_attested_samples(account, attesting))
        return tuple(sorted(parts))

    def take_applied(self, height: int) -> None:
        """The results due at ``height`` are in the weights."""
        self._applied = height

    def take_trained(self, event: act.Trained, out: Actions) -> None:
        """Our batch is done (or was cancelled): tell everybody."""
        record = self.records.get(event.height)
        is_replaced = self._in_work != event.height
        if not is_replaced:
            self._trained = max(self._trained, event.height)
        if event.commitment is None:
            return
        if record is None or is_replaced:
            self._drop((event.commitment.payload_hash,), out)  # the round is long over, or never was
            return
        self._published = event.height
        self._loss, self._tokens_per_second = event.loss, event.tokens_per_second
        batch, commitment = record.assignment[self.index], event.commitment
        record.add_candidate(self.index, commitment)
        record.mark_verified(commitment.payload_hash)
        message = TrainingResult(self._header(event.height), *batch, commitment.encode(), event.size)
        out.append(act.Publish(encode_message(message)))
        name = commitment.compute_hash().hex()
        out.append(act.Emit("published", {"height": event.height, "bytes": event.size, "commitment": name}))

    # ---- the end of a round -------------------------------------------------------------------------

    def finish_round(self, account: CoordinatorAccount, state_digest: bytes, out: Actions) -> None:
        """Announce Finished once: trained, applied, and every result of the previous round is here."""
        height = account.current_round.height
        is_applied = height < 2 or self._applied >= height
        if self._finished >= height or self._trained < height or not is_applied:
            return
        previous = self.records.get(height - 1)
        is_timed_out = account.run_state is RunState.RoundWitness
        if previous is not None and not is_timed_out and is_expecting(account, previous):
            return
        if self.verification.is_checking(account, height) and not is_timed_out:
            return
        self._finished = height
        record = self.records[height]
        record.take_finished(self.index, state_digest)
        message = Finished(self._header(height), state_digest, self._loss)
        out.append(act.Publish(encode_message(message)))
        self._check_divergence(record)

    def attest(self, account: CoordinatorAccount, out: Actions) -> None:
        """Attest the previous round: when we and all who do not attest themselves have finished the current
        one, or its time is out."""
        current = account.current_round
        record = self.records.get(current.height)
        if self._watch.is_undone(account):
            self.witnessed = current.height - 1
        if record is None or self.witnessed >= current.height:
            return
        previous, is_verifying = self.records.get(current.height - 1), self.verification.is_on
        if account.run_state is not RunState.RoundWitness and (
            self._finished < current.height
            or is_anybody_busy(account, record, previous, is_verifying=is_verifying)
        ):
            return
        self.witnessed = current.height
        if self.index in current.elected_indices:
            measured = self._loss, self._tokens_per_second
            out.append(make_witness(current, record, previous, self.index, measured))

    def _prepare_witness(self, account: CoordinatorAccount, record: RoundRecord, out: Actions) -> None:
        """The first ones have finished: we shall attest soon, and everybody will wait for that."""
        current = account.current_round
        if self._prepared < record.height == current.height and self.index in current.elected_indices:
            self._prepared = record.height
            out.append(act.PrepareTransaction())

    def _header(self, height: int) -> RoundHeader:
        identity = self._identity
        return RoundHeader(identity.program_id, identity.run_id, self.epoch, height, self.index)
