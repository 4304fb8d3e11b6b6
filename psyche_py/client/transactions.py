"""The machine's transactions, and what goes into a witness for those who watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver

if TYPE_CHECKING:
    from solders.keypair import Keypair

    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.runs import RunHandle
    from psyche_py.client.options import ClientOptions
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

HARMLESS = frozenset(
    {
        # somebody else's transaction did the same thing first
        "DuplicateWitness",
        "InvalidHealthCheck",
        "InvalidRunState",
        "Halted",
    }
)
LATER = frozenset({"InvalidRunState", "Halted", "DisputesFull", "VotingOver"})
"""Refusals of a verdict or a vote that pass."""
REFUSED_RETRY_SECONDS = 5.0
_KEYS: dict[type, str] = {
    act.SendJoin: "join",
    act.SendAnnounce: "announce",
    act.SendLeave: "leave",
    act.SendTick: "tick",
    act.SendWarmupWitness: "warmup_witness",
    act.SendHealthCheck: "health_check",
    act.SendWitness: "witness",
}


def get_key(action: act.Action) -> str:
    """The name under which the machine hears that a transaction failed."""
    if isinstance(action, ver.SendVerdict | ver.SendVote):
        return ver.get_key(action)
    return _KEYS[type(action)]


def is_tried_again(key: str, error: str) -> bool:
    """Whether a transaction that the program refused with ``error`` may be accepted a little later."""
    if key.startswith(("verdict ", "vote ")):
        return error in LATER
    return key in ("join", "warmup_witness") and error not in HARMLESS


class ClientStats:
    """How busy this client is, since it started: bytes received a second, share of time spent training."""

    def __init__(self, network: Network, clock: Callable[[], float]) -> None:
        self._network = network
        self._clock = clock
        self._started = clock()
        self.train_seconds = 0.0

    @property
    def _seconds(self) -> float:
        return max(self._clock() - self._started, 1e-9)

    @property
    def bandwidth_per_second(self) -> float:
        """Bytes received a second."""
        return self._network.bytes_received / self._seconds

    @property
    def efficiency(self) -> float:
        """Share of the time that went into training."""
        return min(self.train_seconds / self._seconds, 1.0)


class Transactions:
    """Sends what the machine asks for; errors are the runtime's business."""

    def __init__(
        self,
        chain: ProgramClient,
        run: RunHandle,
        network: Network,
        p2p_key: Keypair,
        options: ClientOptions,
        sink: EventSink,
        stats: ClientStats,
    ) -> None:
        self._chain = chain
        self._run = run
        self._network = network
        self._p2p_key = p2p_key
        self._options = options
        self._sink = sink
        self._stats = stats

    async def send(self, action: act.Action) -> None:
        """Send one transaction and wait until it has landed. Raises what ChainBackend.send does."""
        chain, run = self._chain, self._run
        match action:
            case act.SendJoin():
                await chain.join_run(
                    run,
                    p2p_key=self._p2p_key,
                    address_hint=self._network.hint,
                    authorizer=self._options.authorizer,
                )
                self._sink.emit("joined", signer=str(chain.payer.pubkey()))
            case act.SendAnnounce():
                await chain.announce(run, address_hint=self._network.hint)
            case act.SendLeave():
                await chain.leave_run(run)
            case act.SendTick():
                await chain.tick(run)
            case act.SendWarmupWitness(index):
                await chain.warmup_witness(run, index=index)
            case act.SendHealthCheck(_, index):
                await chain.health_check(run, index=index)
                self._sink.emit("health_check", index=index)
            case act.SendWitness():
                await self._send_witness(action)
            case ver.SendVerdict():
                await self._send_verdict(action)
            case ver.SendVote(index, evidence, is_guilty):
                await chain.vote(run, index=index, evidence_hash=evidence, is_guilty=is_guilty)
                self._sink.emit("vote", evidence=evidence.hex(), is_guilty=is_guilty)
            case _:
                raise TypeError(f"not a transaction: {action}")

    async def _send_verdict(self, action: ver.SendVerdict) -> None:
        await self._chain.verdict(
            self._run,
            index=action.index,
            trainer=action.trainer,
            height=action.height,
            reason=action.reason,
            evidence_hash=action.evidence,
        )
        self._sink.emit(
            "verdict", height=action.height, trainer=action.trainer, evidence=action.evidence.hex()
        )

    async def _send_witness(self, action: act.SendWitness) -> None:
        result = await self._chain.witness(
            self._run,
            index=action.index,
            participants=list(action.participants),
            broadcast_bloom=list(action.broadcast_bloom),
            broadcast_merkle=action.broadcast_merkle,
            state_digest=action.state_digest,
            step=action.step,
            tokens_per_second=action.tokens_per_second,
            bandwidth_per_second=self._stats.bandwidth_per_second,
            loss=action.loss,
            efficiency=self._stats.efficiency,
        )
        self._sink.emit("witness", height=action.height, signature=str(result.signature))
