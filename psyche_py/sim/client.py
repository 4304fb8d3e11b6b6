"""One simulated client: a real machine, and its actions performed in virtual time as the runtime does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.machine import ClientMachine
from psyche_py.client.session import Identity
from psyche_py.coordinator.commitment import Commitment, make_bitmap
from psyche_py.coordinator.duties import compute_duties
from psyche_py.coordinator.layout import MAX_CLIENTS, SHARED_KINDS, CheckpointKind
from psyche_py.coordinator.reasons import Reason
from psyche_py.p2p.hint import pack_hint
from psyche_py.p2p.message import Finished, TrainingResult, decode_message, encode_message
from psyche_py.p2p.port import PeerInfo
from psyche_py.sim.chain import PROGRAM_ID, RUN_ID
from psyche_py.sim.endpoint import Endpoint
from psyche_py.sim.fetching import Ask, PayloadFetch, ask_opening, refuse
from psyche_py.sim.model_supply import DISK_SECONDS, ModelSearch
from psyche_py.sim.node import SimNode
from psyche_py.sim.trainer import MODES, SAMPLE_TOKENS, Result, Trainer

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.world import World

CANCEL_SECONDS = 0.1
"""A micro batch: how long a cancelled training still takes."""
PAYLOADS_AT_HALF = 54
"""So many payloads take as long to decode as the rest of an update takes (docs/simulator.md)."""
EQUIVOCATION_SECONDS = 0.5
EXIT_SECONDS = 1.0
"""How long a client that stops still answers: its last transactions are on their way."""
LATE_SECONDS = 0.2

decode_once = lru_cache(maxsize=1024)(decode_message)
"""All receivers of an announcement read the same bytes: in one process they need not do it each."""


def get_seed_of(number: int, kind: str) -> bytes:
    """Seed of a client's wallet or mesh key (32 bytes)."""
    return hashlib.sha256(f"{kind} {number}".encode()).digest()


@dataclass(slots=True)
class Misconduct:
    """What a client does that it should not; each until the virtual time given."""

    slow_until: float = 0.0
    slowness: float = 1.0
    silent_until: float = 0.0
    lies_until: float = 0.0
    tampers_until: float = 0.0
    malformed_until: float = 0.0
    equivocates_until: float = 0.0


class SimClient:
    """See the module. ``generation`` counts its processes: what one left behind does not reach the next."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.role = world.settings.get_role(number)
        self.signer = world.chain.bank.make_signer(get_seed_of(number, "wallet"))
        world.chain.bank.make_signer(get_seed_of(number, "p2p"))  # signs once, when it joins
        self.node = SimNode(
            get_seed_of(number, "p2p"),
            lambda: world.clock.now,
            lambda key: world.wires.is_whole(number, key),
        )
        self.p2p_key = self.node.key
        self.generation = 0
        self.fetches: dict[bytes, PayloadFetch] = {}
        self.waiting: dict[bytes, list[Ask]] = {}
        self._peers: tuple[PeerInfo, ...] = ()
        self.store: set[bytes] = set()
        self.evidence: set[bytes] = set()
        self.answers: set[tuple[int, int, int, int]] = set()  # epoch, height, trainer, verifier
        self.is_dead = False
        self.will_return = False  # dead, but only until its process begins again
        self.frozen_until = 0.0
        self.wrong = Misconduct()
        self.endpoint = Endpoint(self)
        self.is_tainted = False  # its weights were changed behind its back
        self.stopped = ""
        self.events: list[act.Emit] = []
        self.disk: list[bytes] = []  # checkpoints, which outlive the process
        self.resyncs: list[str] = []
        self.produced_bytes = 0  # of all payloads that it committed to
        self.speed = 1.0 + world.settings.spread * (2 * world.rng.random() - 1)
        self.phase = 0.2 * world.rng.random()
        self.skew_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """A new process: the same wallet, an empty memory."""
        self.generation += 1
        # a new process listens on a port that the system chooses
        self.address_hint = pack_hint("127.0.0.1", 9000 + self.number + MAX_CLIENTS * (self.generation % 200))
        run_id = RUN_ID.encode().ljust(32, b"\0")
        identity = Identity(self.signer, self.p2p_key, PROGRAM_ID, run_id, self.address_hint)
        self.machine = ClientMachine(identity, decode_once)
        self.trainer: Trainer = MODES[self.role.mode](self.world, self.number)
        self.drop(tuple(self.store))
        self.fetches.clear()
        self.evidence.clear()
        self.answers.clear()
        self.offer: tuple[int, bytes] | None = None
        self.is_tainted = False
        self._training = 0  # number of the batch in work
        self._in_work: act.Train | None = None
        self._decoded: tuple[bytes, ...] = ()  # payloads that will be applied next

    @property
    def weights(self) -> bytes:
        """Digest of the replica (32 bytes)."""
        return self.trainer.weights

    def die(self) -> None:
        """The process ends, and its connections with it."""
        self.is_dead = True
        self.hang_up()

    def hang_up(self) -> None:
        """Nobody reaches us any more; whoever waits here hears it."""
        self.world.wires.set_up(self.number, False)
        waiting, self.waiting = self.waiting, {}
        for asks in waiting.values():
            for ask in asks:
                refuse(ask)

    # ---- inputs -------------------------------------------------------------------------------------

    def later(self, seconds: float, function: Callable[..., object], *arguments: object) -> None:
        """Like VirtualClock.after, unless the process has ended by then."""
        self.world.clock.after(seconds, self._if_alive, self.generation, function, arguments)

    def _if_alive(
        self, generation: int, function: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        if generation != self.generation or self.is_dead or self.stopped:
            return
        clock = self.world.clock
        if clock.now < self.frozen_until:
            clock.at(self.frozen_until, self._if_alive, generation, function, arguments)
            return
        function(*arguments)

    def feed_later(self, seconds: float, event: act.Input) -> None:
        """Give the machine an input in so many seconds."""
        self.later(seconds, self.feed, event)

    def hear(self, heard: act.Heard) -> None:
        """An announcement arrives."""
        self._if_alive(self.generation, self.feed, (heard,))

    def feed(self, event: act.Input) -> None:
        """Give the machine an input now and perform what it answers."""
        for action in self.machine.handle(event):
            self._perform(action)

    def keep_time(self) -> None:
        """The runtime's timer. It says whole seconds, so once a second is as good as five times."""
        if self.is_dead or self.stopped:
            return
        self.feed(act.TimePassed(int(self.world.clock.now + self.skew_seconds)))
        self.later(1.0, self.keep_time)

    def see(self, account: CoordinatorAccount, slot: int) -> None:
        """A version of the account arrives at our endpoint."""
        self.endpoint.see(account, slot)

    # ---- actions ------------------------------------------------------------------------------------

    def _perform(self, action: act.Action) -> None:
        world = self.world
        world.faults.notice(type(action).__name__, self.number)
        if self.is_dead:
            return
        match action:
            case act.Emit():
                self.events.append(action)
            case act.ReportPeer(peer, kind):
                world.wires.ports[self.number].node.report(peer, kind)
            case act.Publish(body):
                self._publish(body)
                if world.clock.now < self.wrong.equivocates_until or self.trainer.is_equivocator:
                    self._equivocate(body)
            case act.FetchPayload():
                PayloadFetch(self, action).start()
            case act.AskOpening():
                ask_opening(self, action)
            case act.DropPayloads(digests):
                self.drop(digests)
            case act.LoadModel(from_peers):
                self._load(from_peers, self.machine.account)
            case act.PrepareApply():
                self.later(self._compute_decoding(len(action.digests)), self._end_decoding, action)
            case act.Apply():
                world.timeline.take_job(self.number, action.height, is_training=False)
                is_decoded = self._decoded == action.digests
                done = self._compute_decoding(len(action.digests)) if is_decoded else 0.0
                self.later(world.settings.apply_seconds - done, self._apply, action)
            case act.Train():
                self._train(action)
            case act.CancelTraining():
                self._cancel()
            case act.SaveEpoch():
                self.later(world.settings.save_seconds, self._save, action)
            case act.Resync(reason):
                self.resyncs.append(reason)
                self._cancel()
                self.endpoint.send(act.SendLeave())
            case act.ReportLost(epoch, samples):
                world.ledger.take_forgotten(epoch, samples)
            case act.Stop(reason, unsaved):
                self.stopped = reason
                if unsaved is not None:
                    self.disk.append(self.trainer.export())
                world.clock.after(EXIT_SECONDS, self.hang_up)
            case act.SetPeers(peers):
                self._peers = tuple(PeerInfo(key, hint) for key, hint in peers)
                self._learn_peers()
            case act.StartEpoch():
                self._learn_peers()
            case act.PrepareTransaction():
                self.endpoint.prepare()
            case ver.SendVerdict() | ver.SendVote():
                self.endpoint.send(action)
            case _ if isinstance(action, ver.VerificationAction):
                world.court.perform(self, action)
            case act.SendWitness() if world.clock.now < self.wrong.silent_until:
                pass
            case _:
                self.endpoint.send(action)

    def _learn_peers(self) -> None:
        """The overlay is drawn anew for each epoch."""
        account = self.machine.account
        assert account is not None
        seed = self.world.settings.seed.to_bytes(8, "little") + account.start_timestamp.to_bytes(8, "little")
        self.node.learn_peers(self._peers, seed)
        self.world.wires.note_change()

    def _publish(self, body: bytes) -> None:
        message = decode_message(body)
        if isinstance(message, Finished):
            self.world.timeline.take_finished(self.number, message.header.height)
        elif isinstance(message, TrainingResult) and self.trainer.is_late:
            self._publish_late(body, message)
            return
        self.world.wires.announce(self.number, act.Heard(self.p2p_key, body))

    def _publish_late(self, body: bytes, message: TrainingResult) -> None:
        """Keep it back until the draw of who is looked at is known; train only what will be."""
        account, height = self.world.account, message.header.height
        if account.epoch != message.header.epoch or account.current_round.height > height + 1:
            return
        if account.current_round.height <= height:
            self.later(LATE_SECONDS, self._publish_late, body, message)
            return
        drawn = {duty.trainer for duty in compute_duties(account, height + 1)}
        if message.header.sender_index not in drawn:
            digest = Commitment.decode(message.commitment).payload_hash
            self.world.court.false_payloads.add(digest)
            place = self.p2p_key, message.header.epoch, height
            self.world.court.note_false(place, digest, Reason.RESIDUAL)
        self.world.wires.announce(self.number, act.Heard(self.p2p_key, body))

    # ---- the trainer --------------------------------------------------------------------------------

    def _scale(self, seconds: float) -> float:
        wrong = self.wrong
        slowness = wrong.slowness if self.world.clock.now < wrong.slow_until else 1.0
        return seconds * self.speed * slowness * (1 + 0.1 * self.world.rng.random())

    def compute_train_seconds(self) -> float:
        """How long a batch takes here, this time."""
        own = self.role.train_seconds
        return self._scale(self.world.settings.train_seconds if own is None else own)

    def _train(self, action: act.Train) -> None:
        self._training += 1
        self.world.timeline.take_job(self.number, action.height, is_training=True)
        result = self.trainer.train(action)
        if result is None:
            self.feed_later(CANCEL_SECONDS, act.Trained(action.height, None, 0, 0.0, 0.0))
            return
        seconds = self.compute_train_seconds() * result.effort
        self.world.ledger.take_training(action.step, seconds)
        self.later(seconds, self._end_training, self._training, action, result, seconds)
        self._in_work = action

    def _end_training(self, number: int, action: act.Train, result: Result, seconds: float) -> None:
        if number != self._training:
            return
        if self.world.clock.now < self.wrong.malformed_until or not result.is_well_formed:
            self.world.malformed.add(result.digest)
        self._in_work = None
        result = self._conclude(action, result)
        self.keep(result.digest)
        self.produced_bytes += result.size
        self.world.timeline.take_trained(self.number, action.height)
        tokens = SAMPLE_TOKENS * (action.batch_end - action.batch_start + 1)
        commitment = self._commit(action, result)
        self.feed(act.Trained(action.height, commitment, result.size, result.loss, tokens / seconds))

    def _conclude(self, action: act.Train, result: Result) -> Result:
        session = self.machine.session
        record = session.records.get(action.height) if session is not None else None
        if session is None or record is None:
            return result  # of a round or an epoch that is over: nobody will hear of it
        hashes = (record.get_payload_hash(digest) for digest in record.verified.values())
        result = self.trainer.conclude(result, tuple(hashes))
        if result.broken_rule:
            place = self.p2p_key, session.epoch, action.height
            self.world.court.note_false(place, result.digest, result.broken_rule)
        return result

    def _commit(self, action: act.Train, result: Result) -> Commitment:
        if not self.world.account.config.verification_percent:
            return Commitment(result.digest)
        root = hashlib.sha256(b"root" + result.digest).digest()
        return Commitment(result.digest, root, make_bitmap({index for index, _ in action.foreseen}))

    def _equivocate(self, body: bytes) -> None:
        """Say another result to every second client before, and to all of them after, the true one."""
        message = decode_message(body)
        if not isinstance(message, TrainingResult):
            return
        true = Commitment.decode(message.commitment)
        other = replace(true, payload_hash=hashlib.sha256(b"other" + message.commitment).digest())
        self.keep(other.payload_hash)
        world, lie = self.world, encode_message(replace(message, commitment=other.encode()))
        heard = act.Heard(self.p2p_key, lie)
        for number in range((self.number + 1) % 2, len(world.wires.ports), 2):
            world.wires.whisper(self.number, number, heard)
        self.later(EQUIVOCATION_SECONDS, world.wires.announce, self.number, heard)

    def _cancel(self) -> None:
        """The batch in work ends at its next micro batch; asked twice, it ends once."""
        if self._in_work is not None:
            self._training += 1
            self.feed_later(CANCEL_SECONDS, act.Trained(self._in_work.height, None, 0, 0.0, 0.0))
            self._in_work = None

    def _compute_decoding(self, num_payloads: int) -> float:
        """Seconds of an update's that go into decoding so many payloads."""
        return self.world.settings.apply_seconds * num_payloads / (num_payloads + PAYLOADS_AT_HALF)

    def _end_decoding(self, action: act.PrepareApply) -> None:
        self._decoded = action.digests
        self.feed(act.ApplyPrepared())

    def _apply(self, action: act.Apply) -> None:
        assert set(action.digests) <= self.store, "the machine applies only what the store holds"
        self.trainer.apply(action)
        self.world.ledger.take_apply(self, action)
        self.feed(act.Applied(action.height, self.weights))

    def _save(self, action: act.SaveEpoch) -> None:
        self.offer = (action.epoch + 1, self.trainer.export())
        self.disk = [*self.disk[-2:], self.weights]
        self.world.ledger.take_saved(self, action)
        self.feed(act.EpochSaved("checkpoint"))
        if action.post_location and self.world.clock.now >= self.endpoint.gone_until:
            self.world.post_checkpoint(self, self.weights)

    # ---- the model ----------------------------------------------------------------------------------

    def _load(self, from_peers: tuple[bytes, ...], account: CoordinatorAccount | None) -> None:
        assert account is not None
        kind = account.model.checkpoint_kind
        if kind in SHARED_KINDS:
            ModelSearch(self, from_peers, account).go_on()
        elif kind is CheckpointKind.Local:
            self.end_loading(self.world.checkpoints[account.model.checkpoint_repo], DISK_SECONDS)
        else:
            self.end_loading(None, DISK_SECONDS)

    def end_loading(self, weights: bytes | None, seconds: float) -> None:
        """The model with this digest (None: the run's first) is in place in so many seconds."""

        def finish() -> None:
            account = self.machine.account
            assert account is not None
            self.trainer.load(account, weights)
            self.is_tainted = False
            if account.model.checkpoint_kind in SHARED_KINDS:
                self.offer = account.epoch, self.trainer.export()
            self.world.ledger.take_loaded(self)
            self.feed(act.ModelLoaded(self.weights))

        self.later(seconds, finish)

    # ---- payloads -----------------------------------------------------------------------------------

    def keep(self, digest: bytes) -> None:
        """A payload is in our store: others may fetch it."""
        if digest not in self.store:
            self.store.add(digest)
            self.world.num_holders[digest] += 1

    def drop(self, digests: tuple[bytes, ...]) -> None:
        """Payloads that we need no longer."""
        for digest in self.store.intersection(digests):
            self.store.remove(digest)
            self.world.release_payload(digest)

    def answer(self, digest: bytes) -> bytes | None:
        """Digest of the bytes that we hand out for a payload; None when we say that we have it not."""
        if self.world.clock.now < self.wrong.tampers_until:
            return hashlib.sha256(b"tampered" + digest).digest()
        return self.trainer.answer(digest)

    def can_reach(self, peer: SimClient) -> bool:
        """A connection to the peer works, and its process answers."""
        world = self.world
        is_awake = not peer.is_dead and world.clock.now >= peer.frozen_until
        return is_awake and world.wires.is_connected(self.number, peer.number)
