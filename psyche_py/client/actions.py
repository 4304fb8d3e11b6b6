"""What goes into the client machine (inputs) and what comes out of it (actions).

The machine is sans-io: it never waits, reads a clock or touches a socket. The runtime feeds it inputs and
performs the actions it returns; every action that takes time answers with an input of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psyche_py.client.verification_actions import VerificationAction, VerificationInput

if TYPE_CHECKING:
    from psyche_py.coordinator.commitment import Commitment
    from psyche_py.coordinator.state import CoordinatorAccount


# ---- inputs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccountChanged:
    """A version of the run's account, and the slot that it was read in (0: not known)."""

    account: CoordinatorAccount
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """An announcement body whose ``signature`` (64 bytes) by ``sender_key`` (32) the mesh has checked."""

    sender_key: bytes
    body: bytes
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class PayloadFetched:
    """A payload is in the blob store and decodes for this model (``valid``), or is garbage."""

    height: int
    digest: bytes
    valid: bool


@dataclass(frozen=True, slots=True)
class FetchGaveUp:
    """No holder served the payload before the deadline."""

    height: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class OpeningHeard:
    """Peers' answers to :class:`AskOpening`, each ``num_results`` commitments of 96 B in a row, or none."""

    height: int
    root: bytes
    num_results: int
    answers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The replica is in place; ``digest`` is the model digest (32 bytes)."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Applied:
    """The results due at round ``height`` are in the weights."""

    height: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ApplyPrepared:
    """What could be done ahead for :class:`PrepareApply` is done."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Our payload for round ``height`` is in our store; no ``commitment`` when training was cancelled."""

    height: int
    commitment: Commitment | None
    size: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class EpochSaved:
    """The end-of-epoch work (share the model, write a checkpoint) is done."""

    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The chain's present time (unix seconds), fed a few times a second."""

    now: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A transaction did not land; ``key`` names the action that may be tried again."""

    key: str


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user wants out: finish the round, then leave."""


Input = (
    AccountChanged
    | Heard
    | PayloadFetched
    | FetchGaveUp
    | OpeningHeard
    | ModelLoaded
    | Applied
    | ApplyPrepared
    | Trained
    | EpochSaved
    | TimePassed
    | SendFailed
    | LeaveAsked
    | VerificationInput
)

JobDone = Applied | ApplyPrepared | Trained | EpochSaved
"""The trainer is idle again."""


# ---- actions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetPeers:
    """The allow-list and address book: (p2p key, packed address hint) of every client we may talk to.

    ``seed`` (32 B) is the same for all clients and new in every epoch.
    """

    peers: tuple[tuple[bytes, bytes], ...]
    seed: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """Sign and flood an announcement body."""

    body: bytes


@dataclass(frozen=True, slots=True)
class ReportPeer:
    """A peer has done what no honest one does; ``kind`` is the mesh's short word for it."""

    peer: bytes
    kind: str


@dataclass(frozen=True, slots=True)
class FetchPayload:
    """Get the payload of a trainer's result from the sender or any holder."""

    height: int
    digest: bytes
    holders: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AskOpening:
    """Ask peers for the ``num_results`` commitments of round ``height`` that a witness's ``root`` is over.

    ``holders`` are mesh keys, first those of the witnesses who attested it.
    """

    epoch: int
    height: int
    root: bytes
    num_results: int
    holders: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DropPayloads:
    """These payloads are no longer needed by anybody."""

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Bring the replica into place for the epoch. ``from_peers`` are the p2p keys to ask, empty: load it."""

    from_peers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StartEpoch:
    """Training is about to start with the replica we have; tells the trainer about a cold start."""

    start_step: int
    is_cold: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the accepted payloads of round ``height - 2`` with the learning rate of ``step``.

    ``trained`` are the samples that they cover, ``untrained`` those of the round that nobody delivered: they
    are assigned again. Ranges name their first and last sample.
    """

    height: int
    step: int
    digests: tuple[bytes, ...]
    trained: tuple[tuple[int, int], ...]
    untrained: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PrepareApply:
    """Decode the payloads that we expect to apply next; others still train. The weights stay as they are.

    Should the witnesses accept others than ``digests``, nothing is gained and nothing lost.
    """

    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """Train the samples ``batch_start .. batch_end`` (inclusive) for round ``height``, and in the same batch
    those of ``repeats``, which were lost in earlier rounds.

    ``foreseen`` are the others' results of the round before that are here, by client index and payload hash:
    they will be applied together with ours, so the lookahead counts them in. ``index`` is our own.
    """

    height: int
    step: int
    index: int
    batch_start: int
    batch_end: int
    foreseen: tuple[tuple[int, bytes], ...] = ()
    repeats: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CancelTraining:
    """The round has passed without us; stop at the next micro batch."""


@dataclass(frozen=True, slots=True)
class SaveEpoch:
    """End of an epoch: make the model available to joiners and write a checkpoint.

    ``lost`` are the sample ranges of the epoch that nobody trained and that the next epoch does not begin
    with either.
    """

    epoch: int
    step: int
    post_location: bool
    lost: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Samples of an epoch that the run will not have trained, though no epoch's end has named them."""

    epoch: int
    samples: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PrepareTransaction:
    """A transaction of ours is due soon, and will be waited for: get what it needs from the chain by then."""


@dataclass(frozen=True, slots=True)
class SendJoin:
    """join_run."""


@dataclass(frozen=True, slots=True)
class SendAnnounce:
    """announce: our entry shall name the address that we have now."""


@dataclass(frozen=True, slots=True)
class SendLeave:
    """leave_run."""


@dataclass(frozen=True, slots=True)
class SendTick:
    """tick."""


@dataclass(frozen=True, slots=True)
class SendWarmupWitness:
    """warmup_witness with our own index."""

    index: int


@dataclass(frozen=True, slots=True)
class SendHealthCheck:
    """health_check of client ``index``."""

    height: int
    index: int


@dataclass(frozen=True, slots=True)
class SendWitness:
    """witness, about the results of round ``height - 1``."""

    height: int
    step: int
    index: int
    participants: tuple[int, int, int, int]
    broadcast_bloom: tuple[int, ...]
    broadcast_merkle: bytes
    state_digest: bytes
    loss: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Resync:
    """The replica can no longer follow: leave the epoch and take the model from peers at the next one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Write an event for people and programs that watch."""

    kind: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """The client's work is over: "finished" with the run, "left" before, or "ejected".

    ``unsaved``: epoch and step of a replica that is newer than any checkpoint of ours.
    """

    reason: str
    unsaved: tuple[int, int] | None = None


Action = (
    SetPeers
    | Publish
    | ReportPeer
    | FetchPayload
    | AskOpening
    | DropPayloads
    | LoadModel
    | StartEpoch
    | Apply
    | PrepareApply
    | Train
    | CancelTraining
    | SaveEpoch
    | ReportLost
    | PrepareTransaction
    | SendJoin
    | SendAnnounce
    | SendLeave
    | SendTick
    | SendWarmupWitness
    | SendHealthCheck
    | SendWitness
    | Resync
    | Emit
    | Stop
    | VerificationAction
)
