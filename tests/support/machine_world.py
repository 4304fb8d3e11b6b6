"""Client machines against the rule book, with a virtual clock: no threads, no sockets, no torch.

Weights are a hash chain: applying payloads hashes their sorted digests onto it, so that replicas that apply
other results, or in other rounds, end with other digests. Deliveries are delayed, lost and duplicated as the
world's dice say; lost announcements can be asked for again, as over the real mesh.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from machine_court import Court
from rulebook_driver import Driver, get_hint, get_p2p_key, get_signer, make_driver

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.machine import WANTS_MODEL, ClientMachine
from psyche_py.client.session import Identity
from psyche_py.client.targets import TargetKey
from psyche_py.client.transactions import get_key
from psyche_py.coordinator.layout import SHARED_KINDS, RunState
from psyche_py.coordinator.state import CoordinatorAccount

PROGRAM_ID = bytes(range(32))
RUN_ID = b"run".ljust(32, b"\0")
QUIET = frozenset({"DuplicateWitness", "InvalidHealthCheck", "InvalidRunState", "Halted"})


@dataclass
class Replica:
    """One client: its machine, its weights, what it said."""

    number: int
    machine: ClientMachine
    weights: bytes = bytes(32)
    store: set[bytes] = field(default_factory=set)
    events: list[act.Emit] = field(default_factory=list)
    reports: list[tuple[bytes, str]] = field(default_factory=list)
    resyncs: list[str] = field(default_factory=list)
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)
    epoch_digests: dict[int, bytes] = field(default_factory=dict)
    untrained: set[tuple[int, int]] = field(default_factory=set)
    trained: set[tuple[int, int]] = field(default_factory=set)
    applied: dict[tuple[int, int], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    lost: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    disk: set[bytes] = field(default_factory=set)
    """Checkpoints, which outlive its process."""
    stopped: str = ""
    dead: bool = False
    answers: set[TargetKey] = field(default_factory=set)  # reveals that it has prepared

    def get_events(self, kind: str) -> list[dict[str, object]]:
        """What it told people, of one kind."""
        return [event.fields for event in self.events if event.kind == kind]


class World:
    """The chain, the clock, the clients and what is under way between them."""

    def __init__(
        self,
        num: int,
        seed: int,
        *,
        loss: float = 0.0,
        is_repaired: bool = True,
        max_delay: float = 0.3,
        expired: float = 0.0,
        stale: float = 0.0,
        **config: int,
    ) -> None:
        """``loss``: share of announcements and fetches that do not arrive.
        ``is_repaired``: neighbours make up for lost announcements, as the mesh does.
        ``expired``: share of transactions that never land, which the sender learns a second later.
        ``stale``: share of account updates after which an endpoint shows an older version again."""
        self.rng = random.Random(seed)
        self.driver: Driver = make_driver(**config)
        self.replicas: list[Replica] = []
        self._loss, self._max_delay = loss, max_delay
        self._is_repaired = is_repaired
        self._expired, self._stale = expired, stale
        self._past: list[CoordinatorAccount] = []
        self._down_until = 0.0
        self._queue: list[tuple[float, int, int, act.Input]] = []
        self._order = count()
        self.time = float(self.driver.now)
        self._seen_nonce = -1
        self._loading: dict[int, tuple[tuple[bytes, ...], int]] = {}
        self.cut: set[int] = set()  # clients that get no payload
        self.court = Court(self)
        for _ in range(num):
            self.add()

    def add(self) -> Replica:
        """A new client."""
        number = len(self.replicas)
        hint = get_hint(9000 + number)
        identity = Identity(get_signer(number), get_p2p_key(number), PROGRAM_ID, RUN_ID, hint)
        replica = Replica(number, ClientMachine(identity))
        self.replicas.append(replica)
        self.post(replica, act.AccountChanged(self.driver.account), 0.0)
        return replica

    def restart(self, number: int) -> None:
        """The process of a client begins again: the same wallet, an empty memory."""
        old = self.replicas[number]
        old.machine = ClientMachine(old.machine.identity)
        old.weights, old.store, old.dead, old.stopped = bytes(32), set(), False, ""
        self._loading.pop(number, None)
        self._queue = [item for item in self._queue if item[2] != number]
        heapq.heapify(self._queue)
        self.post(old, act.AccountChanged(self.driver.account), 0.0)

    def run(self, until: RunState, max_seconds: int = 2000) -> None:
        """Advance until the run is in a state (and every living client has noticed)."""
        deadline = self.time + max_seconds
        while self.time < deadline:
            self.step()
            if self.driver.account.run_state is until and not self._queue:
                return
        states = [(r.number, r.machine.busy, r.stopped, r.resyncs) for r in self.replicas]
        raise AssertionError(f"never {until.name}: {self.driver.account.run_state.name} {states}")

    def stop_chain(self, seconds: float) -> None:
        """No transaction lands for so long; clocks go on."""
        self._down_until = self.time + seconds

    def step(self) -> None:
        """Up to the next quarter of a second: deliver what is due, then let time act."""
        self.time += 0.25
        while self._queue and self._queue[0][0] <= self.time:
            _, _, number, event = heapq.heappop(self._queue)
            self._feed(self.replicas[number], event)
        if int(self.time) > self.driver.now:
            self.driver.wait(int(self.time) - self.driver.now)
        for replica in self.replicas:
            self._feed(replica, act.TimePassed(self.driver.now))
        self.court.step()
        self._go_on_loading()
        if self.driver.account.nonce != self._seen_nonce:
            self._seen_nonce = self.driver.account.nonce
            for replica in self.replicas:
                self.post(replica, act.AccountChanged(self.driver.account), self._draw_delay())
                if self._past and self.rng.random() < self._stale:
                    self.post(replica, act.AccountChanged(self.rng.choice(self._past)), self._draw_delay())
            self._past = [*self._past[-20:], self.driver.account]

    def _draw_delay(self) -> float:
        return self.rng.random() * self._max_delay

    def _draw_repair(self) -> float:
        """Neighbours say every second what they have and are asked for the rest; that may be lost too."""
        seconds = 1.0
        while self.rng.random() < self._loss:
            seconds += 1.0
        return seconds

    def post(self, replica: Replica, event: act.Input, delay: float) -> None:
        """Give it an input in so many seconds."""
        heapq.heappush(self._queue, (self.time + delay, next(self._order), replica.number, event))

    def _feed(self, replica: Replica, event: act.Input) -> None:
        if replica.dead or replica.stopped:
            return
        for action in replica.machine.handle(event):
            self._perform(replica, action)

    def _perform(self, replica: Replica, action: act.Action) -> None:
        match action:
            case act.Emit():
                replica.events.append(action)
            case act.Publish(body):
                self._publish(replica, body)
            case act.ReportPeer(peer, kind):
                replica.reports.append((peer, kind))
            case act.FetchPayload(height, digest, _):
                self._fetch(replica, height, digest)
            case act.AskOpening():
                self._ask(replica, action)
            case act.DropPayloads(digests):
                replica.store -= set(digests)
            case act.LoadModel(from_peers):
                self._load(replica, from_peers)
            case act.PrepareApply(digests):
                assert set(digests) <= replica.store
                self.post(replica, act.ApplyPrepared(), 0.05)
            case act.Apply():
                self._apply(replica, action)
            case act.Train():
                self._train(replica, action)
            case act.SaveEpoch(epoch, _, _, lost):
                replica.epoch_digests[epoch] = replica.weights
                replica.lost[epoch] = lost
                replica.disk.add(replica.weights)
                self.post(replica, act.EpochSaved(None), 0.2)
            case act.Resync(reason):
                replica.resyncs.append(reason)
                self.driver.apply("leave_run", client=replica.number)
            case act.ReportLost(epoch, samples):
                replica.lost[epoch] = samples
            case act.Stop(reason, unsaved):
                replica.stopped = reason
                if unsaved is not None:
                    replica.disk.add(replica.weights)
            case act.SetPeers() | act.StartEpoch() | act.CancelTraining() | act.PrepareTransaction():
                pass
            case _ if isinstance(action, ver.VerificationAction):
                self.court.perform(replica, action)
            case _:
                self._send(replica, action)

    def _publish(self, replica: Replica, body: bytes) -> None:
        for other in self.replicas:
            if other is replica:
                continue
            heard = act.Heard(get_p2p_key(replica.number), body, b"signature")
            is_lost = self.rng.random() < self._loss
            if is_lost and not self._is_repaired:
                continue
            repair = self._draw_repair() if is_lost else 0.0
            self.post(other, heard, repair + self._draw_delay())
            if self.rng.random() < 0.1:
                self.post(other, heard, self._draw_delay())

    def _fetch(self, replica: Replica, height: int, digest: bytes) -> None:
        held = any(digest in other.store for other in self.replicas if not other.dead)
        if not held or replica.number in self.cut or self.rng.random() < self._loss:
            self.post(replica, act.FetchGaveUp(height, digest), 0.5)
            return
        replica.store.add(digest)
        self.post(replica, act.PayloadFetched(height, digest, True), self._draw_delay())

    def _ask(self, replica: Replica, action: act.AskOpening) -> None:
        asked = (action.epoch, action.height, action.root, action.num_results)
        others = [other for other in self.replicas if other is not replica and not other.dead]
        answers = {b"".join(other.machine.get_opening(*asked)) for other in others}
        self.post(replica, act.OpeningHeard(*asked[1:], tuple(sorted(answers))), 0.3)

    def _load(self, replica: Replica, from_peers: tuple[bytes, ...]) -> None:
        account = self.driver.account
        if account.model.checkpoint_kind in SHARED_KINDS:
            found = self._find_model(replica, from_peers)
            if found is None:
                # the exchange goes on asking, and gives up when the warm-up is over
                self._loading[replica.number] = from_peers, account.start_timestamp
                return
            replica.weights = found
        else:
            replica.weights = bytes(32)
        self.post(replica, act.ModelLoaded(replica.weights), self.rng.random() * 2)

    def _find_model(self, replica: Replica, from_peers: tuple[bytes, ...]) -> bytes | None:
        """The attested model in memory, on disk or at a peer; else what most peers have for this epoch, or
        the one attested before."""
        account = self.driver.account
        donors = {get_p2p_key(r.number): r for r in self.replicas if not r.dead and r is not replica}
        held = [
            donors[key].weights
            for key in from_peers
            if key in donors and donors[key].machine.model_epoch == account.epoch
        ]
        if account.model_digest is None and held:
            return Counter(held).most_common(1)[0][0]
        wanted = account.model_digest or next(iter(account.older_digests), None)
        if wanted is None:
            return None
        here = [replica.weights, *sorted(replica.disk), *held]
        return next((digest for digest in here if digest.startswith(wanted)), None)

    def _go_on_loading(self) -> None:
        for number, (from_peers, start) in list(self._loading.items()):
            replica, account = self.replicas[number], self.driver.account
            if account.start_timestamp != start or account.run_state not in WANTS_MODEL:
                replica.machine.busy = ""
                del self._loading[number]
            elif self._find_model(replica, from_peers) is not None:
                del self._loading[number]
                self._load(replica, from_peers)

    def _apply(self, replica: Replica, action: act.Apply) -> None:
        assert set(action.digests) <= replica.store
        if action.digests:
            replica.weights = hashlib.sha256(replica.weights + b"".join(sorted(action.digests))).digest()
        replica.digests[self.driver.account.epoch, action.step] = replica.weights
        replica.untrained.update(action.untrained)
        replica.applied[self.driver.account.epoch, action.step] = action.trained
        self.post(replica, act.Applied(action.height, replica.weights), 0.05)

    def _train(self, replica: Replica, action: act.Train) -> None:
        name = f"{replica.number} {action.step} {action.batch_start} {replica.weights.hex()}"
        digest = hashlib.sha256(name.encode()).digest()
        replica.store.add(digest)
        replica.trained.update({(action.batch_start, action.batch_end), *action.repeats})
        commitment = self.court.commit(replica, action, digest)
        done = act.Trained(action.height, commitment, 100, 1.0, 10.0)
        self.post(replica, done, 0.2 + self.rng.random())

    def _send(self, replica: Replica, action: act.Action) -> None:
        client = replica.number
        if self.time < self._down_until or self.rng.random() < self._expired:
            self.post(replica, act.SendFailed(get_key(action)), 1.0)
            return
        match action:
            case act.SendJoin():
                key, hint = get_p2p_key(client).hex(), replica.machine.identity.address_hint.hex()
                error = self.driver.apply("join_run", client=client, p2p_key=key, address_hint=hint)
            case act.SendAnnounce():
                hint = replica.machine.identity.address_hint.hex()
                error = self.driver.apply("announce", client=client, address_hint=hint)
            case act.SendLeave():
                error = self.driver.apply("leave_run", client=client)
            case act.SendTick():
                error = self.driver.apply("tick")
            case act.SendWarmupWitness(index):
                error = self.driver.apply("warmup_witness", client=client, index=index)
            case act.SendHealthCheck(_, index):
                error = self.driver.apply("health_check", client=client, index=index)
            case act.SendWitness():
                error = self.driver.apply(
                    "witness",
                    client=client,
                    index=action.index,
                    step=action.step,
                    participants=list(action.participants),
                    broadcast_bloom=list(action.broadcast_bloom),
                    broadcast_merkle=action.broadcast_merkle.hex(),
                    state_digest=action.state_digest.hex(),
                )
            case _:
                raise TypeError(action)
        assert error is None or error in QUIET, f"{action}: {error}"


def check_replicas(replicas: list[Replica]) -> None:
    """Wherever two report a digest for one place, it is the same."""
    seen: dict[object, bytes] = {}
    assert any(replica.digests for replica in replicas)
    for replica in replicas:
        for place, digest in [*replica.digests.items(), *replica.epoch_digests.items()]:
            assert seen.setdefault(place, digest) == digest, f"replica {replica.number} at {place}"


def check_samples(world: World) -> None:
    """Every sample up to the end was applied exactly once or is reported lost, and all replicas agree."""
    applied: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    lost: dict[int, tuple[tuple[int, int], ...]] = {}
    for replica in world.replicas:
        for place, ranges in replica.applied.items():
            assert applied.setdefault(place, ranges) == ranges, place
        for epoch, ranges in replica.lost.items():
            assert lost.setdefault(epoch, ranges) == ranges, epoch
    parts = [part for ranges in (*applied.values(), *lost.values()) for part in ranges]
    times = Counter(sample for first, last in parts for sample in range(first, last + 1))
    assert times == Counter(range(world.driver.account.epoch_start_data_index))
