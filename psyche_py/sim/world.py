"""A whole run in virtual time: chain, wires, clients, faults and the ledger that watches them."""

from __future__ import annotations

import gc
import hashlib
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psyche_py.client import actions as act
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.layout import CheckpointKind, RunState
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.bank import Bank
from psyche_py.sim.chain import SimChain
from psyche_py.sim.client import SimClient
from psyche_py.sim.clock import VirtualClock
from psyche_py.sim.court import Court
from psyche_py.sim.faults import Fault, Faults
from psyche_py.sim.ledger import Ledger, is_from_checkpoint
from psyche_py.sim.settings import Settings, make_rates, make_run_config
from psyche_py.sim.timeline import Timeline
from psyche_py.sim.wires import Wires

START = 1_700_000_000.0
ENDED = (RunState.Finished, RunState.Uninitialized)


def _make_program_bank() -> Bank:
    from psyche_py.sim.programs import ProgramBank  # LiteSVM is imported by those who want it

    return ProgramBank(int(START))


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Millions of objects come and go, few in cycles: looking for them costs a quarter of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class World:
    """See the module. The same settings and faults give the same trace, event for event."""

    def __init__(self, settings: Settings, faults: Sequence[Fault] = ()) -> None:
        self.settings = settings
        self.rng = random.Random(settings.seed)
        self.clock = VirtualClock(START)
        self.ledger = Ledger()
        bank = _make_program_bank() if settings.is_on_programs else None
        self.chain = SimChain(self.clock, make_run_config(settings), make_rates(settings), bank)
        self.wires = Wires(self.clock, self.rng, self.hear)
        self.clients: list[SimClient] = []
        self.checkpoints: dict[str, bytes] = {}
        self.num_holders: Counter[bytes] = Counter()
        """How many stores each payload is in."""
        self.malformed: set[bytes] = set()
        """Payloads that do not decode."""
        self.forged: set[bytes] = set()
        """Results that no witness has seen when it attested."""
        self.payloads: dict[bytes, bytes] = {}
        """Bytes of the payloads of clients that really train, while anybody holds them."""
        self.models: dict[bytes, Any] = {}
        """Models (model.sharing.ModelSnapshot) that such clients offer, by digest."""
        self.court = Court(self)
        self.timeline = Timeline(self.clock)
        self.gone: set[int] = set()
        """Clients that are not there at the end: killed, or told to leave."""
        self.trace = hashlib.sha256()
        """Of every change of the account and when it happened: equal for equal runs."""
        self.faults = Faults(self, faults)
        self._by_key: dict[bytes, SimClient] = {}
        self.chain.rewindable.append(self.ledger)
        self.chain.is_forkable = any(fault.kind == "fork" for fault in faults)
        self.chain.on_change.append(self._take_change)
        self.chain.on_slot.append(self._tell)
        for _ in range(settings.num_clients):
            self.add_client()
        for path in settings.paths:
            self.wires.set_path(path)

    @property
    def account(self) -> CoordinatorAccount:
        """The run as the chain has it."""
        return self.chain.account

    @property
    def virtual_seconds(self) -> float:
        """Since the run began."""
        return self.clock.now - START

    def get_client(self, p2p_key: bytes) -> SimClient | None:
        """The client with a mesh key."""
        return self._by_key.get(p2p_key)

    def add_client(self) -> SimClient:
        """One more wallet joins."""
        number = len(self.clients)
        client = SimClient(self, number)
        link = client.role.link
        self.wires.add(client.node, self.settings.link if link is None else link)
        self.clients.append(client)
        self._by_key[client.p2p_key] = client
        self.start_client(client)
        return client

    def start_client(self, client: SimClient) -> None:
        """Its process begins: it reads the account and keeps time."""
        client.later(client.phase, lambda: client.see(self.account, self.chain.slot))
        second = 1.0 - self.clock.now % 1.0
        client.later(second + client.phase, client.keep_time)

    def tell(self, client: SimClient) -> None:
        """The client reads the account anew, after its endpoint was away."""
        client.later(self.settings.link.latency_seconds, lambda: client.see(self.account, self.chain.slot))

    def run(self, until: Callable[[], bool] | None = None, max_seconds: float = 7200.0) -> bool:
        """Let time pass until something is so (default: the run is finished and all have noticed).

        Returns whether it came to that within ``max_seconds``.
        """
        is_over = until if until is not None else self._is_over
        deadline = self.clock.now + max_seconds
        with _seldom_collected():
            while not is_over():
                if self.clock.now > deadline or not self.clock.step():
                    return False
        return True

    def _is_over(self) -> bool:
        if self.account.run_state is not RunState.Finished:
            return False
        return all((c.stopped or c.is_dead) and not c.will_return for c in self.clients)

    def post_checkpoint(self, client: SimClient, weights: bytes) -> None:
        """A client has written a checkpoint and tells the run where."""
        repo = f"/checkpoints/{weights.hex()}"
        self.checkpoints[repo] = weights
        arguments = {
            "signer": client.signer,
            "kind": int(CheckpointKind.Local),
            "repo": repo.encode().ljust(128, b"\0"),
            "revision": bytes(64),
        }
        self.chain.submit(rules.process_checkpoint, arguments)

    # ---- listeners ----------------------------------------------------------------------------------

    def _tell(self, account: CoordinatorAccount) -> None:
        for client in self.clients:
            latency = self.wires.ports[client.number].link.latency_seconds
            client.later(latency * (1 + 0.5 * self.rng.random()), client.see, account, self.chain.slot)

    def hear(self, receiver: int, heard: act.Heard) -> None:
        """A client hears an announcement."""
        self.clients[receiver].hear(heard)

    # ---- payloads of clients that really train ------------------------------------------------------

    def put_payload(self, payload: bytes) -> bytes:
        """Keep a payload's bytes until nobody holds it; returns its digest (32 B)."""
        digest = hashlib.sha256(payload).digest()
        self.payloads[digest] = payload
        return digest

    def release_payload(self, digest: bytes) -> None:
        """A client holds a payload no longer."""
        self.num_holders[digest] -= 1
        if self.num_holders[digest] <= 0:
            del self.num_holders[digest]
            self.payloads.pop(digest, None)

    def get_payload_bytes(self, digest: bytes) -> int:
        """Length of a payload."""
        payload = self.payloads.get(digest)
        return self.settings.payload_bytes if payload is None else len(payload)

    def _take_change(self, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        self.ledger.take_change(self.clock.now, before, after)
        self.timeline.take_change(before, after)
        self.trace.update(struct.pack("<d", self.clock.now) + after.record.tobytes())
        if before.run_state is not after.run_state:
            self.faults.notice(after.run_state.name, None)
            if after.run_state is RunState.Warmup and after.epoch > 0 and is_from_checkpoint(after):
                repo = after.model.checkpoint_repo
                weights = self.checkpoints.get(repo)
                self.ledger.take_fallback(after, self.ledger.get_newest_weights(), weights)
