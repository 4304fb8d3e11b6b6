"""The client as a pure function: inputs in, actions out.

It follows the run's account, hears what peers announce, and decides what to train, apply, attest, fetch and
send. No clock, no socket, no torch: the runtime performs the actions and feeds back what came of them.

The pipeline of one round R (protocol.md, "Kept: overlap"):

    apply the results of R-2, accepted by the witnesses stored in R-1
    train our batch of R, while the payloads of R-1 arrive
    announce Finished; when everybody has, the elected witnesses attest the results of R-1
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_py.client import actions as act
from psyche_py.client.rounds import RoundRecord, compute_apply_plan, compute_majority
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.committee import compute_witness_position, get_num_elected
from psyche_py.coordinator.layout import CheckpointKind, ClientState, RunState
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.transition import is_tick_due
from psyche_py.coordinator.views import Round
from psyche_py.coordinator.witness import is_client_unhealthy
from psyche_py.p2p.message import (
    Finished,
    MessageError,
    RoundHeader,
    TrainingResult,
    decode_message,
    encode_message,
)

ACTIVE = (RunState.RoundTrain, RunState.RoundWitness, RunState.Cooldown)
IN_EPOCH = (RunState.Warmup, *ACTIVE)
KEPT_ROUNDS = 5
"""Payloads are needed for two rounds by us and a little longer by peers that lag."""
MAX_EARLY = 1024
"""Announcements kept for a round that the account has not shown us yet."""
NUM_HEALTH_CHECKERS = 3
"""Only so many witnesses report a silent client; one transaction is enough, the others cover its loss."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are: wallet, mesh key, and the run (all 32 bytes; ``run_id`` zero padded)."""

    signer: bytes
    p2p_key: bytes
    program_id: bytes
    run_id: bytes


@dataclass(slots=True)
class EpochSession:
    """Our part in one epoch."""

    key: tuple[int, int]
    index: int
    ready: bool = False
    applied: int = 1  # rounds 0 and 1 apply nothing
    records: dict[int, RoundRecord] = field(default_factory=dict)
    newest: int = -1
    trained: int = -1  # newest round whose training is over, one way or the other
    finished: int = -1
    witnessed: int = -1
    asked: set[tuple[int, int]] = field(default_factory=set)
    fetching: set[bytes] = field(default_factory=set)
    saved: bool = False


class ClientMachine:
    """See the module. One instance lives as long as the client, through many epochs."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.account: CoordinatorAccount | None = None
        self.session: EpochSession | None = None
        self.model_epoch = -1  # the epoch our replica is the right start for; -1: none
        self.digest = bytes(32)  # of our replica's weights
        self.busy: str = ""  # what the trainer is doing
        self.training_height = -1
        self.leaving = False
        self.stopped = False
        self._early: dict[tuple[int, int], list[tuple[bytes, TrainingResult | Finished]]] = {}
        self._sent: dict[str, int] = {}  # transaction key -> account nonce it was sent at
        self._last_state: tuple[object, ...] = ()
        self._peers: tuple[tuple[bytes, bytes], ...] = ()
        self._loss = 0.0
        self._tokens_per_second = 0.0
        self._due_since: int | None = None
        self._leave_height = -1
        self._now = 0

    # ---- the door -----------------------------------------------------------------------------------

    def handle(self, event: act.Input) -> list[act.Action]:
        """Take one input, return what to do. After a Stop nothing more comes."""
        if self.stopped:
            return []
        out: list[act.Action] = []
        match event:
            case act.AccountChanged(account):
                self._on_account(account, out)
            case act.Heard(sender_key, body):
                self._on_heard(sender_key, body, out)
            case act.PayloadFetched(height, digest, valid):
                self._on_payload(height, digest, valid, out)
            case act.FetchGaveUp(_, digest):
                if self.session is not None:
                    self.session.fetching.discard(digest)  # asked again while it is still needed
            case act.CandidatesHeard(height, index, digests):
                self._on_candidates(height, index, digests, out)
            case act.ModelLoaded(digest):
                self._on_model_loaded(digest, out)
            case act.Applied(height, digest):
                self._on_applied(height, digest, out)
            case act.Trained():
                self._on_trained(event, out)
            case act.EpochSaved(checkpoint):
                self._on_saved(checkpoint, out)
            case act.TimePassed(now):
                self._now = now
                self._on_time(now, out)
            case act.SendFailed(key):
                self._sent.pop(key, None)
                self._on_send_failed(key)
            case act.LeaveAsked():
                self._on_leave_asked(out)
        if not self.stopped:
            self._advance(out)
        return out

    def get_candidates(self, epoch: int, height: int, index: int) -> tuple[bytes, ...]:
        """Commitments we heard from client ``index`` for a round, to answer a peer's question."""
        session = self.session
        if session is None or session.key[0] != epoch or height not in session.records:
            return ()
        return tuple(session.records[height].candidates.get(index, ()))

    # ---- the account --------------------------------------------------------------------------------

    def _on_account(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        if self.account is not None and account.nonce < self.account.nonce:
            return
        self.account = account
        self._set_peers(account, out)
        state = account.run_state
        shown = (state, account.epoch, account.step, self._height(account))
        if shown != self._last_state:
            self._last_state = shown
            self._due_since = None
            fields: dict[str, object] = {
                "run_state": state.name,
                "epoch": account.epoch,
                "step": account.step,
                "height": self._height(account),
                "num_healthy": account.num_healthy,
                "data_index": account.current_round.data_index if state in ACTIVE else -1,
            }
            out.append(act.Emit("state", fields))

    def _set_peers(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        own = self.identity.p2p_key
        peers = tuple(
            (entry.p2p_key, entry.address_hint) for entry in account.entries if entry.p2p_key != own
        )
        if peers != self._peers:
            self._peers = peers
            out.append(act.SetPeers(peers))

    def _enter_epoch(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        """Take our place in an epoch that we have no session for."""
        self.session = None
        index = account.find_epoch_client(self.identity.signer)
        if index is None or account.epoch_clients[index].state is not ClientState.Healthy:
            return
        if account.run_state is RunState.Warmup:
            self._start_session(account, (account.epoch, account.start_timestamp), index, out)
        elif account.run_state is not RunState.Cooldown:
            # restarted in the middle of an epoch: our state is gone, do not hold the others up
            self._send(out, "leave", act.SendLeave())

    def _is_following(self, account: CoordinatorAccount, session: EpochSession) -> bool:
        """Our session belongs to the epoch that the account shows, running or ended but not yet saved."""
        if account.start_timestamp != session.key[1] or session.saved:
            return False
        if account.run_state in IN_EPOCH:
            return account.epoch == session.key[0]
        return session.ready and session.newest >= 0

    def _is_excluded(self, account: CoordinatorAccount, session: EpochSession) -> bool:
        """Somebody reported us, or we withdrew: the others go on without us."""
        state = account.epoch_clients[session.index].state
        if account.run_state in (RunState.Warmup, RunState.RoundTrain, RunState.RoundWitness):
            return state is not ClientState.Healthy
        return state in (ClientState.Dropped, ClientState.Ejected)

    def _start_session(
        self, account: CoordinatorAccount, key: tuple[int, int], index: int, out: list[act.Action]
    ) -> None:
        self.session = EpochSession(key, index)
        from_peers = account.model.checkpoint_kind in (CheckpointKind.P2P, CheckpointKind.P2PGcs)
        if from_peers and self.model_epoch == account.epoch:
            self._become_ready(account, out)
            return
        self.busy = "load"
        own = self.identity.p2p_key
        donors = tuple(c.p2p_key for c in account.epoch_clients if c.p2p_key != own) if from_peers else ()
        out.append(act.LoadModel(donors))

    def _become_ready(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        assert self.session is not None
        self.session.ready = True
        out.append(act.StartEpoch(account.start_step, account.is_cold_start_epoch))
        if account.run_state is RunState.Warmup:
            self._send(out, "warmup_witness", act.SendWarmupWitness(self.session.index))

    def _see_rounds(self, account: CoordinatorAccount, session: EpochSession, out: list[act.Action]) -> None:
        """Make a record of every round that the ring shows and we have not seen."""
        current = account.current_round.height
        for height in range(max(session.newest + 1, current - 3, 0), current + 1):
            round_ = account.get_round_at(height)
            if round_ is None:
                continue
            session.records[height] = RoundRecord(
                height=height,
                step=round_.step,
                healthy=frozenset(round_.healthy_indices),
                assignment=compute_assignment(account, round_),
            )
            session.newest = height
            for sender_key, message in self._early.pop((session.key[0], height), ()):
                self._on_message(account, session, sender_key, message, out)
            self._check_health(account, session, height, out)
        self._forget_old_rounds(session, current, out)
        if self.busy == "train" and self.training_height < current:
            out.append(act.CancelTraining())

    def _forget_old_rounds(self, session: EpochSession, current: int, out: list[act.Action]) -> None:
        for height in [h for h in session.records if h < current - KEPT_ROUNDS + 1]:
            digests = session.records.pop(height).all_digests()
            if digests:
                out.append(act.DropPayloads(digests))
        self._early = {k: v for k, v in self._early.items() if k[0] == session.key[0] and k[1] > current}

    def _check_health(
        self, account: CoordinatorAccount, session: EpochSession, height: int, out: list[act.Action]
    ) -> None:
        """Report clients that the last witnesses did not see (psyche.md 1.12)."""
        current = account.current_round
        if height != current.height or height < 2 or account.run_state not in ACTIVE[:2]:
            return
        position = self._get_position(account, session, current)
        if position is None or position >= NUM_HEALTH_CHECKERS:
            return
        out.extend(
            act.SendHealthCheck(height, index)
            for index in current.healthy_indices
            if index != session.index and is_client_unhealthy(account, index)
        )

    # ---- announcements and payloads -----------------------------------------------------------------

    def _on_heard(self, sender_key: bytes, body: bytes, out: list[act.Action]) -> None:
        account, session = self.account, self.session
        if account is None or session is None:
            return
        try:
            message = decode_message(body)
        except MessageError as error:
            out.append(act.Emit("warning", {"message": f"bad announcement: {error}"}))
            return
        if not isinstance(message, TrainingResult | Finished):
            return  # warm-up readiness is on chain
        header = message.header
        if header.program_id != self.identity.program_id or header.run_id != self.identity.run_id:
            return
        if header.epoch != session.key[0]:
            return
        if header.height > session.newest:
            waiting = self._early.setdefault((header.epoch, header.height), [])
            if header.height <= session.newest + 2 and len(waiting) < MAX_EARLY:
                waiting.append((sender_key, message))
            return
        self._on_message(account, session, sender_key, message, out)

    def _on_message(
        self,
        account: CoordinatorAccount,
        session: EpochSession,
        sender_key: bytes,
        message: TrainingResult | Finished,
        out: list[act.Action],
    ) -> None:
        header = message.header
        record = session.records.get(header.height)
        clients = account.epoch_clients
        if record is None or header.sender_index >= len(clients):
            return
        if clients[header.sender_index].p2p_key != sender_key or header.sender_index not in record.healthy:
            return
        if isinstance(message, Finished):
            record.finished.setdefault(header.sender_index, message.state_digest)
            self._check_divergence(session, record, out)
            return
        if record.assignment.get(header.sender_index) != (message.batch_start, message.batch_end):
            return
        if record.add_candidate(header.sender_index, message.commitment):
            self._fetch(account, session, record.height, header.sender_index, message.commitment, out)

    def _fetch(
        self,
        account: CoordinatorAccount,
        session: EpochSession,
        height: int,
        index: int,
        digest: bytes,
        out: list[act.Action],
    ) -> None:
        if digest in session.fetching or index == session.index:
            return
        session.fetching.add(digest)
        clients = account.epoch_clients
        own = self.identity.p2p_key
        others = [c.p2p_key for c in clients if c.p2p_key not in (own, clients[index].p2p_key)]
        out.append(act.FetchPayload(height, digest, (clients[index].p2p_key, *others)))

    def _on_payload(self, height: int, digest: bytes, valid: bool, out: list[act.Action]) -> None:
        session = self.session
        if session is None:
            return
        session.fetching.discard(digest)
        record = session.records.get(height)
        if record is None:
            out.append(act.DropPayloads((digest,)))
        elif valid:
            record.mark_verified(digest)
        else:
            record.rejected.add(digest)
            out.append(act.Emit("warning", {"message": f"malformed payload {digest.hex()[:12]}"}))

    def _on_candidates(
        self, height: int, index: int, digests: tuple[bytes, ...], out: list[act.Action]
    ) -> None:
        account, session = self.account, self.session
        if account is None or session is None:
            return
        session.asked.discard((height, index))
        record = session.records.get(height)
        if record is None:
            return
        for digest in digests:
            if record.add_candidate(index, digest):
                self._fetch(account, session, height, index, digest, out)

    def _check_divergence(self, session: EpochSession, record: RoundRecord, out: list[act.Action]) -> None:
        """Compare our weights with what the others report for the same round (state digest)."""
        mine = record.finished.get(session.index)
        if mine is None:
            return
        majority = compute_majority(list(record.finished.values()), of=len(record.healthy))
        if majority is not None and majority != mine:
            self._resync(out, f"our weights differ from the majority's at round {record.height}")

    # ---- what the trainer reports -------------------------------------------------------------------

    def _on_model_loaded(self, digest: bytes, out: list[act.Action]) -> None:
        self.busy = ""
        account, session = self.account, self.session
        if account is None or session is None:
            return  # the epoch was called off meanwhile; the next warm-up asks again
        self.model_epoch = session.key[0]
        self.digest = digest
        self._become_ready(account, out)

    def _on_applied(self, height: int, digest: bytes, out: list[act.Action]) -> None:
        self.busy = ""
        if self.session is not None:
            self.session.applied = height
            self.digest = digest

    def _on_trained(self, event: act.Trained, out: list[act.Action]) -> None:
        self.busy = ""
        account, session = self.account, self.session
        if account is None or session is None:
            return
        session.trained = max(session.trained, event.height)
        record = session.records.get(event.height)
        if event.digest is None or record is None:
            return
        self._loss, self._tokens_per_second = event.loss, event.tokens_per_second
        batch = record.assignment[session.index]
        record.add_candidate(session.index, event.digest)
        record.mark_verified(event.digest)
        header = self._header(session, event.height)
        message = TrainingResult(header, batch[0], batch[1], event.digest, event.size)
        out.append(act.Publish(encode_message(message)))
        shown = {"height": event.height, "bytes": event.size, "commitment": event.digest.hex()}
        out.append(act.Emit("published", dict(shown)))

    def _on_saved(self, checkpoint: str | None, out: list[act.Action]) -> None:
        self.busy = ""
        if self.session is not None:
            self.session.saved = True
            self.model_epoch = self.session.key[0] + 1

    # ---- time and transactions ----------------------------------------------------------------------

    def _on_time(self, now: int, out: list[act.Action]) -> None:
        """Tick when a tick would change something; later ranks wait, so that few transactions race."""
        account = self.account
        if account is None or not is_tick_due(account, now):
            self._due_since = None
            return
        if self._due_since is None:
            self._due_since = now
        index = account.find_entry(self.identity.signer)
        rank = 0 if index is None else index % 4
        if now - self._due_since >= rank:
            self._send(out, "tick", act.SendTick())

    def _send(self, out: list[act.Action], key: str, action: act.Action) -> None:
        """Send once per version of the account, so that one cause makes one transaction."""
        assert self.account is not None
        if self._sent.get(key) != self.account.nonce:
            self._sent[key] = self.account.nonce
            out.append(action)

    def _on_send_failed(self, key: str) -> None:
        if key == "witness" and self.session is not None:
            self.session.witnessed -= 1

    def _on_leave_asked(self, out: list[act.Action]) -> None:
        self.leaving = True
        account = self.account
        self._leave_height = self._height(account) if account is not None else -1
        out.append(act.Emit("leaving", {"after_height": self._leave_height}))

    def _maybe_leave(self, out: list[act.Action]) -> bool:
        account, session = self.account, self.session
        in_round = (
            account is not None
            and session is not None
            and account.run_state in (RunState.RoundTrain, RunState.RoundWitness)
            and self._height(account) == self._leave_height
            and session.witnessed < self._leave_height
        )
        if in_round:
            return False
        if account is not None and account.find_entry(self.identity.signer) is not None:
            out.append(act.SendLeave())
        self._stop(out, "left")
        return True

    def _stop(self, out: list[act.Action], reason: str, error: str | None = None) -> None:
        self.stopped = True
        out.append(act.Stop(reason, error))

    def _resync(self, out: list[act.Action], reason: str) -> None:
        self._forget_session()
        self.model_epoch = -1
        out.append(act.Resync(reason))

    def _forget_session(self) -> None:
        self.session = None
        self._early = {}

    # ---- deciding what is next ----------------------------------------------------------------------

    def _advance(self, out: list[act.Action]) -> None:
        account, session = self.account, self.session
        if account is None:
            return
        if self.leaving and not self.busy and self._maybe_leave(out):
            return
        state = account.run_state
        if session is not None and self._is_following(account, session):
            if self._is_excluded(account, session):
                out.append(act.Emit("warning", {"message": "we are no longer part of this epoch"}))
                out.append(act.CancelTraining())
                self.model_epoch = -1
                self._forget_session()
            elif session.ready and state is not RunState.Warmup:
                self._follow_rounds(account, session, out)
        elif self.busy:
            return
        elif state in IN_EPOCH:
            if session is None or not session.saved or session.key[1] != account.start_timestamp:
                self._enter_epoch(account, out)
        elif state is RunState.Finished:
            self._stop(out, "finished")
        elif state is RunState.WaitingForMembers:
            self.session = None
            if not self.leaving:
                self._join(account, out)

    def _follow_rounds(
        self, account: CoordinatorAccount, session: EpochSession, out: list[act.Action]
    ) -> None:
        self._see_rounds(account, session, out)
        if not self.busy:
            self._start_job(account, session, out)
        if self.session is session and account.run_state in (RunState.RoundTrain, RunState.RoundWitness):
            self._finish_round(account, session, out)
            self._witness(account, session, out)

    def _join(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        index = account.find_entry(self.identity.signer)
        entry = account.entries[index] if index is not None else None
        if entry is None or entry.active != account.next_active or entry.p2p_key != self.identity.p2p_key:
            self._send(out, "join", act.SendJoin())

    def _start_job(self, account: CoordinatorAccount, session: EpochSession, out: list[act.Action]) -> None:
        """Give the idle trainer its next job: apply what is due, then train, then save."""
        current = account.current_round
        if session.applied < current.height:
            self._apply(account, session, session.applied + 1, out)
            return
        record = session.records[current.height]
        if account.run_state not in (RunState.RoundTrain, RunState.RoundWitness):
            self.busy = "save"
            healthy = [c.index for c in account.epoch_clients if c.state is ClientState.Healthy]
            is_first = bool(healthy) and session.index == healthy[0]
            out.append(act.SaveEpoch(session.key[0], account.step, is_first))
        elif account.run_state is RunState.RoundTrain and session.trained < current.height:
            batch = record.assignment.get(session.index)
            if batch is None:
                session.trained = current.height
            else:
                self.busy, self.training_height = "train", current.height
                out.append(act.Train(current.height, current.step, batch[0], batch[1]))

    def _apply(
        self, account: CoordinatorAccount, session: EpochSession, height: int, out: list[act.Action]
    ) -> None:
        record = session.records.get(height - 2)
        attesting = account.get_round_at(height - 1)
        if record is None or attesting is None or height not in session.records:
            self._resync(out, f"fell more than the ring of rounds behind at round {height}")
            return
        plan = compute_apply_plan(account, record, attesting)
        for index in plan.unheard:
            if (height - 2, index) not in session.asked:
                session.asked.add((height - 2, index))
                out.append(act.AskCandidates(session.key[0], height - 2, index))
        missing = [(i, d) for i, d in plan.accepted if d not in record.verified_digests]
        for index, digest in missing:
            self._fetch(account, session, height - 2, index, digest, out)
        if plan.unheard or missing:
            return
        self.busy = "apply"
        digests = tuple(digest for _, digest in plan.accepted)
        out.append(act.Apply(height, session.records[height].step, digests, plan.untrained))

    def _finish_round(
        self, account: CoordinatorAccount, session: EpochSession, out: list[act.Action]
    ) -> None:
        """Announce Finished once: trained, applied, and every result of the previous round is here."""
        current = account.current_round
        height = current.height
        if session.finished >= height or session.trained < height or session.applied < height > 1:
            return
        previous = session.records.get(height - 1)
        timed_out = account.run_state is RunState.RoundWitness
        if previous is not None and not previous.is_all_verified and not timed_out:
            return
        session.finished = height
        record = session.records[height]
        record.finished[session.index] = self.digest
        message = Finished(self._header(session, height), self.digest, self._loss)
        out.append(act.Publish(encode_message(message)))
        self._check_divergence(session, record, out)

    def _witness(self, account: CoordinatorAccount, session: EpochSession, out: list[act.Action]) -> None:
        """Attest the previous round: as soon as everybody has finished, or when the round times out."""
        current = account.current_round
        record = session.records.get(current.height)
        if self.session is not session or record is None or session.witnessed >= current.height:
            return
        timed_out = account.run_state is RunState.RoundWitness
        if not timed_out and not all(index in record.finished for index in record.healthy):
            return
        session.witnessed = current.height
        position = self._get_position(account, session, current)
        if position is None:
            return
        previous = session.records.get(current.height - 1)
        attests = previous is not None and bool(previous.assignment)
        finished = record.finished.get(session.index)
        out.append(
            act.SendWitness(
                height=current.height,
                step=current.step,
                index=session.index,
                position=position,
                participants=previous.compute_participants() if previous and attests else (0, 0, 0, 0),
                broadcast_bloom=(
                    previous.compute_broadcast_bloom(current.random_seed)
                    if previous and attests
                    else (0,) * 16
                ),
                broadcast_merkle=previous.compute_broadcast_merkle() if previous and attests else bytes(32),
                state_digest=finished if finished is not None else bytes(32),
                loss=self._loss,
                tokens_per_second=self._tokens_per_second,
            )
        )

    # ---- small helpers ------------------------------------------------------------------------------

    def _get_position(self, account: CoordinatorAccount, session: EpochSession, round_: Round) -> int | None:
        """Our position in the witness committee of a round; None when we are not elected."""
        if session.index not in round_.healthy_indices:
            return None
        position = compute_witness_position(round_, session.index)
        return position if position < get_num_elected(account, round_) else None

    def _header(self, session: EpochSession, height: int) -> RoundHeader:
        identity = self.identity
        return RoundHeader(identity.program_id, identity.run_id, session.key[0], height, session.index)

    @staticmethod
    def _height(account: CoordinatorAccount) -> int:
        return account.current_round.height if account.run_state in ACTIVE else -1
