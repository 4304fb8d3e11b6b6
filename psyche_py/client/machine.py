"""The client as a pure function: inputs in, actions out.

It follows the run's account, joins and leaves, keeps one replica through many epochs and gives the trainer
its next job. What happens within an epoch is in ``session``. No clock, no socket, no torch: the runtime
performs the actions and feeds back what came of them.
"""

from __future__ import annotations

from collections.abc import Callable

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.address import AddressBookEntry
from psyche_py.client.announcements import compute_mesh_seed
from psyche_py.client.attesting import get_patience, owes_witness
from psyche_py.client.dispute_news import DisputeNews, explain_ejection
from psyche_py.client.model_news import ModelNews, compute_forgotten, is_wanted
from psyche_py.client.session import Actions, EpochSession, Identity
from psyche_py.client.targets import Target, TargetKey
from psyche_py.coordinator.layout import (
    ACTIVE,
    ROUND_STATES,
    RUNNING_EPOCH,
    SHARED_KINDS,
    ClientState,
    RunState,
)
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.transition import is_tick_due
from psyche_py.p2p.message import Finished, Message, MessageError, TrainingResult, decode_message

WANTS_MODEL = (RunState.Warmup, *ROUND_STATES)
"""States in which a client that has not got the epoch's model yet goes on asking for it."""
RESEND_SECONDS = 30
"""What landed and is not to be seen in the account after so long is sent again: a leave that was under way
has undone it, or a fork of the chain. Each of these transactions is safe to send twice."""
TICK_RETRY_SECONDS = 2
"""A tick may reach a chain whose clock is a little behind ours, and then changes nothing."""


class ClientMachine:
    """See the module. One instance lives as long as the client."""

    def __init__(self, identity: Identity, decode: Callable[[bytes], Message] = decode_message) -> None:
        """``decode`` reads an announcement's body; raises MessageError."""
        self.identity = identity
        self._decode = decode
        self.account: CoordinatorAccount | None = None
        self.session: EpochSession | None = None
        self.model_epoch = -1  # the epoch our replica is the right start for; -1: none
        self.digest = bytes(32)  # of our replica's weights
        self.busy = ""  # what the trainer is doing
        self.stopped = False
        self._training_height = -1
        self._is_leaving = False
        self._leave_height = -1
        self._address = AddressBookEntry(identity)
        self._sent: dict[str, tuple[int, int]] = {}  # transaction key -> occasion, and when
        self._last_state: tuple[object, ...] = ()
        self._leftover: set[bytes] = set()  # payloads of sessions that are over
        self._peers: act.SetPeers | None = None
        self._waiting_for = ""
        self._news = DisputeNews()
        self._model_news = ModelNews()
        self._now = 0  # unix seconds of the chain
        self._due_since: int | None = None
        self._ticked_at = 0
        self._slot = 0  # newest that we saw the account in

    # ---- the door -----------------------------------------------------------------------------------

    def handle(self, event: act.Input) -> list[act.Action]:
        """Take one input, return what to do. After a Stop nothing more comes."""
        out: Actions = []
        if self.stopped:
            return out
        match event:
            case act.AccountChanged(account, slot):
                self._on_account(account, slot, out)
            case act.TimePassed(now):
                self._on_time(now, out)
            case act.ModelLoaded(digest):
                self._on_model_loaded(digest, out)
            case act.SendFailed(key):
                self._on_send_failed(key)
            case act.LeaveAsked():
                self._on_leave_asked(out)
            case _:
                self._on_epoch_input(event, out)
        if not self.stopped:
            self._advance(out)
        return out

    def _on_epoch_input(self, event: act.Input, out: Actions) -> None:
        """Inputs that belong to the session; what the trainer did is over even when the session is."""
        if isinstance(event, act.JobDone | ver.JobDone):
            self.busy = ""
        account, session = self.account, self.session
        if account is None or session is None:
            if isinstance(event, act.PayloadFetched):
                out.append(act.DropPayloads((event.digest,)))
            elif isinstance(event, act.Trained) and event.commitment is not None:
                out.append(act.DropPayloads((event.commitment.payload_hash,)))  # nobody will ask for it
            return
        match event:
            case act.Heard():
                self._on_heard(account, session, event, out)
            case act.PayloadFetched(height, digest, valid):
                session.take_payload(account, height, digest, valid, out)
            case act.FetchGaveUp(height, digest):
                session.give_up_fetch(account, height, digest, out)
            case act.OpeningHeard():
                session.take_opening(account, event)
            case act.Applied(height, digest):
                self.digest = digest
                session.take_applied(height)
            case act.Trained():
                session.take_trained(event, out)
            case act.EpochSaved():
                session.is_saved = True
                self.model_epoch = session.epoch + 1
            case _ if isinstance(event, ver.VerificationInput):
                session.verification.take(account, event, out)

    def get_opening(self, epoch: int, height: int, root: bytes, num_results: int) -> tuple[bytes, ...]:
        """The commitments (96 B each) that a witness's root is over, for a peer: all, or those we know."""
        account, session = self.account, self.session
        if account is None or session is None or session.epoch != epoch or height not in session.records:
            return ()
        return session.records[height].get_opening(root, num_results, account.get_round_at(height + 1))

    def may_reveal(self, sender_key: bytes, epoch: int, height: int, verifier: int) -> TargetKey | None:
        """Which of our prepared answers a peer may have; None when it may have none."""
        account, session = self.account, self.session
        if account is None or session is None or session.epoch != epoch:
            return None
        return session.verification.may_ask(account, sender_key, height, verifier)

    def find_target(self, sender_key: bytes, epoch: int, height: int, trainer: int) -> Target | None:
        """What a peer was drawn to look at; None when it was not."""
        account, session = self.account, self.session
        if account is None or session is None or session.epoch != epoch:
            return None
        return session.verification.find_target(account, sender_key, height, trainer)

    def _on_heard(
        self, account: CoordinatorAccount, session: EpochSession, heard: act.Heard, out: Actions
    ) -> None:
        try:
            message = self._decode(heard.body)
        except MessageError as error:
            out.append(act.Emit("warning", {"message": f"bad announcement: {error}"}))
            return
        if not isinstance(message, TrainingResult | Finished):
            return  # who has the model is on chain
        header, identity = message.header, self.identity
        if (header.program_id, header.run_id) != (identity.program_id, identity.run_id):
            return
        if header.epoch == session.epoch:
            session.hear(account, heard, message, out)

    # ---- the account --------------------------------------------------------------------------------

    def _on_account(self, account: CoordinatorAccount, slot: int, out: Actions) -> None:
        if self.account is not None and account.nonce < self.account.nonce:
            if slot <= self._slot:
                return  # of an endpoint that lags
            self._note_fork(account, out)
        self.account, self._slot = account, max(slot, self._slot)
        self._set_peers(account, out)
        if self._address.is_wrong(account):
            self._send_once(out, "announce", 0, act.SendAnnounce())
        self._news.tell(account, out)
        self._model_news.tell(account, out)
        state, height = account.run_state, _get_height(account)
        shown = (state, account.epoch, account.step, height)
        if shown == self._last_state:
            return
        self._last_state = shown
        self._due_since = None
        fields: dict[str, object] = {
            "run_state": state.name,
            "epoch": account.epoch,
            "step": account.step,
            "height": height,
            "num_healthy": account.num_healthy,
            "data_index": account.current_round.data_index if state in ACTIVE else -1,
        }
        out.append(act.Emit("state", fields))

    def _note_fork(self, account: CoordinatorAccount, out: Actions) -> None:
        """A later slot shows an older version: the chain has gone back, and what had landed may be undone."""
        text = f"the chain has gone back to version {account.nonce} of the run"
        out.append(act.Emit("warning", {"message": text}))
        self._sent.clear()
        if self.session is not None:
            self.session.witnessed = min(self.session.witnessed, _get_height(account) - 1)

    def _set_peers(self, account: CoordinatorAccount, out: Actions) -> None:
        own = self.identity.p2p_key
        # links to wallets that have long left would be missing between those that are there
        peers = tuple((e.p2p_key, e.address_hint) for e in account.present if e.p2p_key != own)
        asked = act.SetPeers(peers, compute_mesh_seed(account, self.identity))
        if asked != self._peers:
            self._peers = asked
            out.append(asked)

    def _advance(self, out: Actions) -> None:
        """Do what follows from how things stand."""
        account, session = self.account, self.session
        if account is None:
            return
        if self._is_leaving and not self.busy and self._leave(account, out):
            return
        if session is not None and _is_following(account, session):
            if is_ejected(account, session):
                self._eject(account, session, out)
            elif _is_excluded(account, session):
                out.append(act.Emit("warning", {"message": "we are no longer part of this epoch"}))
                out.append(act.CancelTraining())
                self._close_session()
                self.model_epoch = -1
            elif session.is_ready:
                self._follow(account, session, out)
        elif not self.busy:
            self._rest(account, session, out)

    def _rest(self, account: CoordinatorAccount, session: EpochSession | None, out: Actions) -> None:
        """Between epochs, or in one that we are not part of (yet)."""
        state = account.run_state
        if session is not None and is_ejected(account, session):
            self._eject(account, session, out)
            return
        if session is not None and state is RunState.Cooldown:
            session.verification.follow(account, out)  # a vote that did not land
        self._say_waiting(account, out)
        if state in RUNNING_EPOCH:
            if session is None or not session.is_saved or session.start != account.start_timestamp:
                self._enter_epoch(account, out)
        elif state is RunState.Finished:
            self._stop(out, "finished")
        elif state is RunState.WaitingForMembers:
            self._close_session()
            if not self._is_leaving:
                self._join(account, out)

    def _say_waiting(self, account: CoordinatorAccount, out: Actions) -> None:
        """Tell once why nothing is happening here."""
        reason = ""
        if account.run_state is RunState.Paused:
            reason = "the run is paused"
        elif account.run_state in ACTIVE and account.find_epoch_client(self.identity.signer) is None:
            reason = f"epoch {account.epoch} is under way, we join the next one"
        elif account.run_state is RunState.WaitingForMembers:
            wanted = account.config.init_min_clients
            reason = f"the next epoch starts when {wanted} clients have joined"
        if reason and reason != self._waiting_for:
            out.append(act.Emit("waiting", {"reason": reason}))
        self._waiting_for = reason

    def _follow(self, account: CoordinatorAccount, session: EpochSession, out: Actions) -> None:
        """Take part in the epoch."""
        if account.run_state is RunState.Warmup:
            if not account.warmup_ready >> session.index & 1:
                self._send_once(out, "warmup_witness", session.start, act.SendWarmupWitness(session.index))
            return
        session.see_rounds(account, out)
        session.verification.follow(account, out)
        if self.busy == "train" and self._training_height < account.current_round.height:
            out.append(act.CancelTraining())
        if not self.busy:
            job = session.choose_job(account, out)
            if job is not None:
                self._start_job(job, out)
        if account.run_state in ROUND_STATES and not session.lost:
            session.finish_round(account, self.digest, out)
            session.attest(account, out)
        if session.lost:
            self._give_up(account, session, out)

    def _give_up(self, account: CoordinatorAccount, session: EpochSession, out: Actions) -> None:
        """We cannot follow the epoch any more; if it is over there is nothing to leave."""
        if account.run_state in ACTIVE:
            out.append(act.Resync(session.lost))
        else:
            samples = [list(part) for part in session.compute_unapplied(account)]
            fields = {"epoch": session.epoch, "reason": session.lost, "samples": samples}
            out.append(act.Emit("incomplete", fields))
        self._close_session()
        self.model_epoch = -1

    def _close_session(self) -> None:
        """Our part in the epoch is over. Its payloads stay until the next, for peers that lag."""
        if self.session is not None:
            self._leftover |= self.session.get_digests()
        self.session = None

    def _start_job(self, job: act.Action, out: Actions) -> None:
        self.busy = type(job).__name__.lower()
        if isinstance(job, act.Train):
            self._training_height = job.height
        out.append(job)

    # ---- joining, the model, leaving ----------------------------------------------------------------

    def _join(self, account: CoordinatorAccount, out: Actions) -> None:
        index = account.find_entry(self.identity.signer)
        entry = account.entries[index] if index is not None else None
        if entry is None or entry.active != account.next_active or entry.p2p_key != self.identity.p2p_key:
            self._send_once(out, "join", account.next_active, act.SendJoin())
        else:
            self._sent.pop("join", None)  # a leave that was under way may still undo it: then join again

    def _enter_epoch(self, account: CoordinatorAccount, out: Actions) -> None:
        """Take our place in an epoch that we have no session for."""
        self._close_session()
        if self._leftover:
            out.append(act.DropPayloads(tuple(self._leftover)))
            self._leftover = set()
        index = account.find_epoch_client(self.identity.signer)
        if index is None or account.epoch_clients[index].state is not ClientState.Healthy:
            return
        if account.run_state is RunState.Warmup:
            self.session = EpochSession(self.identity, account, index)
            self._get_model(account, self.session, out)
        elif account.run_state is not RunState.Cooldown:
            # restarted in the middle of an epoch: our state is gone, do not hold the others up
            self._send_once(out, "leave", account.start_timestamp, act.SendLeave())

    def _get_model(self, account: CoordinatorAccount, session: EpochSession, out: Actions) -> None:
        is_shared, wanted = account.model.checkpoint_kind in SHARED_KINDS, account.model_digest
        if is_shared and self.model_epoch == account.epoch and is_wanted(self.digest, wanted):
            self._become_ready(account, session, out)
            return
        self.busy, self.model_epoch = "load", -1
        own = self.identity.p2p_key
        donors = [c.p2p_key for c in account.epoch_clients if c.p2p_key != own] if is_shared else []
        out.append(act.LoadModel(tuple(donors)))

    def _on_model_loaded(self, digest: bytes, out: Actions) -> None:
        self.busy = ""
        account, session = self.account, self.session
        if account is None or session is None:
            return  # the epoch was called off meanwhile; the next warm-up asks again
        self.digest, self.model_epoch = digest, session.epoch
        if forgotten := compute_forgotten(account, digest):
            out.append(act.ReportLost(session.epoch - 1, forgotten))
        self._become_ready(account, session, out)

    def _become_ready(self, account: CoordinatorAccount, session: EpochSession, out: Actions) -> None:
        session.is_ready = True
        out.append(act.StartEpoch(account.start_step, account.is_cold_start_epoch))

    def _on_leave_asked(self, out: Actions) -> None:
        self._is_leaving = True
        self._leave_height = _get_height(self.account) if self.account is not None else -1
        out.append(act.Emit("leaving", {"after_height": self._leave_height}))

    def _leave(self, account: CoordinatorAccount, out: Actions) -> bool:
        """Leave, unless the round we were asked in still runs or the epoch is yet to be saved."""
        session = self.session
        is_epoch_over = account.run_state not in (RunState.Warmup, *ROUND_STATES)
        if session is not None and is_epoch_over and session.is_ready and _is_following(account, session):
            return False
        is_in_round = (
            session is not None
            and account.run_state in ROUND_STATES
            and _get_height(account) == self._leave_height
            and (session.witnessed < self._leave_height or owes_witness(account, session.index))
        )
        if is_in_round:
            return False
        if account.find_entry(self.identity.signer) is not None:
            out.append(act.SendLeave())
        unsaved = None
        if session is not None and session.newest >= 0 and account.run_state in ROUND_STATES:
            unsaved = session.epoch, account.current_round.step + 1  # perhaps all leave with us
        self._stop(out, "left", unsaved)
        return True

    def _eject(self, account: CoordinatorAccount, session: EpochSession, out: Actions) -> None:
        """We lost a dispute. Coming back is the user's decision, not ours."""
        out.append(act.CancelTraining())
        out.append(act.Emit("ejected", {"reason": explain_ejection(account, session.index)}))
        self._close_session()
        self._stop(out, "ejected")

    def _stop(self, out: Actions, reason: str, unsaved: tuple[int, int] | None = None) -> None:
        self.stopped = True
        out.append(act.Stop(reason, unsaved))

    # ---- time and transactions ----------------------------------------------------------------------

    def _on_time(self, now: int, out: Actions) -> None:
        """Tick when a tick would change something; later ranks wait, so that few transactions race."""
        account, self._now = self.account, now
        if account is None or not is_tick_due(account, now):
            self._due_since = None
            return
        if self._due_since is None:
            self._due_since = now
        index = account.find_entry(self.identity.signer)
        patience = (0 if index is None else index % 4) + get_patience(account)
        if now - self._due_since >= patience and now - self._ticked_at >= TICK_RETRY_SECONDS:
            self._ticked_at = now
            out.append(act.SendTick())

    def _send_once(self, out: Actions, key: str, occasion: int, action: act.Action) -> None:
        """Send once for an occasion; again when it failed, or when nothing came of it."""
        sent, sent_at = self._sent.get(key, (-1, 0))
        if sent != occasion or self._now - sent_at >= RESEND_SECONDS:
            self._sent[key] = occasion, self._now
            out.append(action)

    def _on_send_failed(self, key: str) -> None:
        self._sent.pop(key, None)
        if self.session is None:
            return
        if key == "witness":
            self.session.witnessed -= 1
        else:
            self.session.verification.resend(key)


def _is_following(account: CoordinatorAccount, session: EpochSession) -> bool:
    """The session belongs to the epoch that the account shows, running or ended but not yet saved."""
    if account.start_timestamp != session.start or session.is_saved:
        return False
    if account.run_state in RUNNING_EPOCH:
        return account.epoch == session.epoch
    return session.is_ready and session.newest >= 0


def is_ejected(account: CoordinatorAccount, session: EpochSession) -> bool:
    """The tie-breakers found against us in the session's epoch."""
    is_its_epoch = account.start_timestamp == session.start
    return is_its_epoch and account.epoch_clients[session.index].state is ClientState.Ejected


def _is_excluded(account: CoordinatorAccount, session: EpochSession) -> bool:
    """Somebody reported us, or we withdrew: the others go on without us."""
    state = account.epoch_clients[session.index].state
    if account.run_state in (RunState.Warmup, *ROUND_STATES):
        return state is not ClientState.Healthy
    return state is ClientState.Dropped


def _get_height(account: CoordinatorAccount) -> int:
    return account.current_round.height if account.run_state in ACTIVE else -1
