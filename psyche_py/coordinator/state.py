"""The run's account as an object: checked bytes in, typed views out.

A CoordinatorAccount never changes once made; transitions work on a copy of its record. The views are built
on first use and kept, so a reader pays for what it looks at only.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from psyche_py.coordinator.layout import (
    ACCOUNT_SIZE,
    ADDRESS_HINT_BYTES,
    AUTHORIZATION_PREFIX_BYTES,
    COORDINATOR_ACCOUNT,
    DISCRIMINATOR,
    GUILTY_BIT,
    HALTED,
    MAX_CLIENTS,
    MAX_TIE_BREAKER_SEATS,
    MAX_WITNESSES,
    MODEL_ENUMS,
    MODEL_PREFIX_BYTES,
    NUM_STORED_ROUNDS,
    VERSION,
    ClientState,
    DisputeState,
    Record,
    RunState,
    copy_record,
    get_bitmap,
    get_text,
)
from psyche_py.coordinator.model import CoordinatorConfig, Metadata, Model
from psyche_py.coordinator.views import (
    Dispute,
    Entry,
    EpochClient,
    Rates,
    Round,
    Witness,
    find_entry,
    find_epoch_client,
    find_replaceable_entry,
    get_num_healthy,
    get_pending,
    read_disputes,
)
from psyche_py.errors import ChainError

__all__ = [
    "AccountDiscriminatorError",
    "AccountFormatError",
    "AccountLengthError",
    "AccountValueError",
    "AccountVersionError",
    "CoordinatorAccount",
    "Dispute",
    "Entry",
    "EpochClient",
    "Rates",
    "Round",
    "Witness",
    "read_account",
]


class AccountFormatError(ChainError):
    """Bytes that claim to be a run's account are not one we can read."""


class AccountLengthError(AccountFormatError):
    """The account has another size than this version's layout."""


class AccountDiscriminatorError(AccountFormatError):
    """The account is of another type, or not initialised."""


class AccountVersionError(AccountFormatError):
    """The account was written by a program of another layout version."""


class AccountValueError(AccountFormatError):
    """A count, an index or an enumeration in the account is out of range."""


_ENTRY_BYTES = (("signer", 32), ("p2p_key", 32), ("address_hint", ADDRESS_HINT_BYTES))


def _split(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


class CoordinatorAccount:
    """See the module. ``record`` is the numpy structured record; read it, never write it."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @classmethod
    def from_bytes(cls, data: bytes) -> CoordinatorAccount:
        """Same as :func:`read_account`."""
        return read_account(data)

    def to_bytes(self) -> bytes:
        """The account's bytes, ACCOUNT_SIZE of them."""
        return bytes(self.record.tobytes())

    def copy(self) -> CoordinatorAccount:
        """A copy whose record may be written (before any view of it is read)."""
        return CoordinatorAccount(copy_record(self.record))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoordinatorAccount) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # equality by 85 KB of bytes: nothing to hash cheaply

    # ---- plain fields -------------------------------------------------------------------------------

    @cached_property
    def nonce(self) -> int:
        """Grows with every instruction that changed the account."""
        return int(self.record["nonce"])

    @cached_property
    def run_id(self) -> str:
        """The run's name."""
        return get_text(self.record["run_id"])

    @property
    def run_id_bytes(self) -> bytes:
        """The run's name as stored, 32 bytes zero padded."""
        return bytes(self.record["run_id"].tobytes())

    @cached_property
    def model_digest(self) -> bytes | None:
        """Digest of the model that the next epoch, or the running one, starts from.

        32 B, or only the first 16 of them where the run has fallen back on an older model. None when no
        quorum attested the last round of the epoch before. Means nothing unless the model is shared.
        """
        digest = bytes(self.record["epoch_state"]["model_digest"].tobytes())
        if not any(digest):
            return None
        return digest if any(digest[MODEL_PREFIX_BYTES:]) else digest[:MODEL_PREFIX_BYTES]

    @cached_property
    def older_digests(self) -> tuple[bytes, ...]:
        """First 16 B of the digests of models to fall back on: those attested before ``model_digest``."""
        fields = self.record["epoch_state"]["older_digests"]
        return tuple(digest.tobytes() for digest in fields if digest.any())

    @cached_property
    def model_step(self) -> int:
        """The step in which ``model_digest`` was attested (plus steps that changed no model); 0: unknown."""
        return int(self.record["model_step"])

    @cached_property
    def older_step(self) -> int:
        """The step in which the first of ``older_digests`` was attested; 0 when that is not known."""
        return int(self.record["older_step"])

    @cached_property
    def client_version(self) -> str:
        """The client release that the run asks for."""
        return get_text(self.record["client_version"])

    @cached_property
    def run_state(self) -> RunState:
        """Where the run stands."""
        return RunState(int(self.record["run_state"]))

    @property
    def is_halted(self) -> bool:
        """Uninitialized, Finished or Paused: ticks are refused."""
        return self.run_state in HALTED

    @property
    def is_pause_pending(self) -> bool:
        """The run pauses when the running epoch has ended."""
        return bool(self.record["pending_pause"])

    @property
    def run_state_start(self) -> int:
        """Unix seconds of the last change of run state."""
        return int(self.record["run_state_start_unix_timestamp"])

    @cached_property
    def step(self) -> int:
        """Number of the current step, from 1."""
        return int(self.record["progress"]["step"])

    @cached_property
    def epoch(self) -> int:
        """Number of the current epoch, from 0."""
        return int(self.record["progress"]["epoch"])

    @property
    def epoch_start_data_index(self) -> int:
        """First sample of the epoch (of the next one between epochs)."""
        return int(self.record["progress"]["epoch_start_data_index"])

    @property
    def next_active(self) -> int:
        """The value of an entry's ``active`` that makes it a candidate for the next epoch."""
        return int(self.record["next_active"])

    @cached_property
    def start_step(self) -> int:
        """Step at which the epoch began."""
        return int(self.record["epoch_state"]["start_step"])

    @property
    def last_step(self) -> int:
        """Step at which the epoch will end; 0 while that is open."""
        return int(self.record["epoch_state"]["last_step"])

    @cached_property
    def start_timestamp(self) -> int:
        """Unix seconds of the epoch's warm-up start."""
        return int(self.record["epoch_state"]["start_timestamp"])

    @property
    def is_first_round(self) -> bool:
        """The epoch's first round has not ended yet."""
        return bool(self.record["epoch_state"]["first_round"])

    @property
    def is_cold_start_epoch(self) -> bool:
        """The epoch follows a pause: optimizer state is new and the learning rate warms up."""
        return bool(self.record["epoch_state"]["cold_start_epoch"])

    @cached_property
    def warmup_ready(self) -> int:
        """Bitmap of epoch clients that reported the model loaded."""
        return get_bitmap(self.record["epoch_state"]["warmup_ready"])

    # ---- views --------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> CoordinatorConfig:
        """The ``[config]`` table."""
        return CoordinatorConfig.from_record(self.record["config"])

    @cached_property
    def model(self) -> Model:
        """The ``[model.LLM]`` table and what the program made of its checkpoint."""
        return Model.from_record(self.record["model"])

    @cached_property
    def metadata(self) -> Metadata:
        """What people read about the run."""
        return Metadata.from_record(self.record["metadata"])

    @cached_property
    def current_rates(self) -> Rates:
        """Rates of the running epoch."""
        rates = self.record["current_rates"]
        return Rates(int(rates["earning_rate_total_shared"]), int(rates["slashing_rate_per_client"]))

    @cached_property
    def future_rates(self) -> Rates:
        """Rates from the next epoch on."""
        rates = self.record["future_rates"]
        return Rates(int(rates["earning_rate_total_shared"]), int(rates["slashing_rate_per_client"]))

    @cached_property
    def current_round(self) -> Round:
        """The round in the ring's head; all zeros before the epoch's first round."""
        state = self.record["epoch_state"]
        return Round(state["rounds"][int(state["rounds_head"])])

    @cached_property
    def previous_round(self) -> Round | None:
        """The round before; None in the first round of an epoch."""
        return self.get_round_at(self.current_round.height - 1)

    def get_round_at(self, height: int) -> Round | None:
        """A stored round by its height in the epoch; None when it never was or has been overwritten."""
        state = self.record["epoch_state"]
        back = self.current_round.height - height
        if height < 0 or not 0 <= back < NUM_STORED_ROUNDS:
            return None
        head = int(state["rounds_head"])
        return self.current_round if back == 0 else Round(state["rounds"][(head - back) % NUM_STORED_ROUNDS])

    @cached_property
    def epoch_clients(self) -> tuple[EpochClient, ...]:
        """The clients of the epoch, by index. Their number never changes within an epoch."""
        clients = self.record["epoch_state"]["clients"][: int(self.record["epoch_state"]["num_clients"])]
        entries = self.entries
        return tuple(
            EpochClient(
                index,
                entry,
                ClientState(state),
                exited_height,
                attested,
                contradictions,
                silent,
                refusals,
                entries[entry].signer,
                entries[entry].p2p_key,
                entries[entry].address_hint,
            )
            for index, (entry, state, refusals, exited_height, attested, contradictions, silent) in enumerate(
                clients.tolist()
            )
        )

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every wallet that ever joined, in order of joining."""
        entries = self.record["entries"][: int(self.record["num_entries"])]
        # whole columns at once: field by field, 256 entries take three times as long
        columns = (
            *(_split(entries[name].tobytes(), size) for name, size in _ENTRY_BYTES),
            *(entries[name].tolist() for name in ("earned", "slashed", "active", "last_epoch", "claimed")),
            _split(entries["authorization"].tobytes(), AUTHORIZATION_PREFIX_BYTES),
        )
        return tuple(Entry(index, *values) for index, values in enumerate(zip(*columns, strict=True)))

    @cached_property
    def disputes(self) -> tuple[Dispute, ...]:
        """What is disputed in this epoch, open or settled, as far as the account's places hold it."""
        return read_disputes(self.record)

    def find_open_dispute(self, evidence_hash: bytes) -> Dispute | None:
        """The open dispute with this evidence (32 bytes)."""
        found = (d for d in self.disputes if d.is_open and d.evidence_hash == evidence_hash)
        return next(found, None)

    @cached_property
    def num_healthy(self) -> int:
        """Epoch clients in state Healthy."""
        return get_num_healthy(self.record)

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """Entry indices of the clients that asked to take part in the next epoch."""
        return tuple(get_pending(self.record).tolist())

    @cached_property
    def present(self) -> tuple[Entry, ...]:
        """Who can be there, in order of joining: the clients of the epoch, and who asked for it or the next.

        Of the others the wallets stay in the list for life, but nobody has heard of them for an epoch.
        """
        in_epoch = {client.entry for client in self.epoch_clients}
        oldest = max(self.next_active - 1, 1)
        return tuple(entry for entry in self.entries if entry.index in in_epoch or entry.active >= oldest)

    @property
    def has_room(self) -> bool:
        """Whether a wallet that is not in the run yet finds a place in it."""
        return len(self.entries) < MAX_CLIENTS or find_replaceable_entry(self.record) is not None

    def find_entry(self, signer: bytes) -> int | None:
        """Entry index of a wallet (32 bytes); None when it never joined."""
        return find_entry(self.record, signer)

    def find_epoch_client(self, signer: bytes) -> int | None:
        """Epoch client index of a wallet; None when it is not in the epoch."""
        entry = find_entry(self.record, signer)
        return None if entry is None else find_epoch_client(self.record, entry)


# ---- reading ----------------------------------------------------------------------------------------------


def read_account(data: bytes | bytearray | memoryview) -> CoordinatorAccount:
    """View account bytes without a copy, after checking length, discriminator, version and every index.

    Raises a subclass of AccountFormatError that says what is wrong.
    """
    if len(data) != ACCOUNT_SIZE:
        raise AccountLengthError(
            f"A run's account has {ACCOUNT_SIZE} bytes, this one {len(data)}.",
            "Check the account address and that client and program are of the same release.",
        )
    record = np.frombuffer(data, dtype=COORDINATOR_ACCOUNT)[0]
    found = record["discriminator"].tobytes()
    if found != DISCRIMINATOR:
        raise AccountDiscriminatorError(
            f"The account's discriminator is {found.hex()}, a run's is {DISCRIMINATOR.hex()}.",
            "Check the account address.",
        )
    if record["version"] != VERSION:
        raise AccountVersionError(
            f"The account has layout version {record['version']}, this client reads {VERSION}.",
            "Install the client release that the run asks for."
            if record["version"] > VERSION
            else "Bring it to this version once: run-manager migrate -r RUN_ID",
        )
    _check_values(record)
    return CoordinatorAccount(record)


def _check_values(record: Record) -> None:
    """Counts and enumerations that later code uses as indices or enum values."""
    epoch, model = record["epoch_state"], record["model"]
    num_clients, num_entries = int(epoch["num_clients"]), int(record["num_entries"])
    clients = epoch["clients"][: min(num_clients, MAX_CLIENTS)]
    is_valid = {
        "run_state": record["run_state"] <= max(RunState),
        "num_entries": num_entries <= MAX_CLIENTS,
        "num_clients": num_clients <= MAX_CLIENTS,
        "rounds_head": epoch["rounds_head"] < NUM_STORED_ROUNDS,
        "num_witnesses": bool((epoch["rounds"]["num_witnesses"] <= MAX_WITNESSES).all()),
        "clients.entry": bool((clients["entry"] < num_entries).all()),
        "clients.state": bool((clients["state"] <= max(ClientState)).all()),
        "disputes": _has_sound_disputes(record, min(num_clients, MAX_CLIENTS)),
        **{f"model.{name}": model[name] <= max(kind) for name, kind in MODEL_ENUMS.items()},
    }
    wrong = [name for name, valid in is_valid.items() if not valid]
    if wrong:
        raise AccountValueError(
            f"The account holds impossible values: {', '.join(wrong)}.",
            "The account was not written by this program; check its address and owner.",
        )


def _has_sound_disputes(record: Record, num_clients: int) -> bool:
    """Their states are known, and parties and voters are clients of the epoch."""
    disputes = record["disputes"]
    used = disputes[disputes["state"] != DisputeState.Free]
    parties = np.concatenate([used["accuser"], used["trainer"]])
    stored = np.arange(MAX_TIE_BREAKER_SEATS) < used["num_votes"][:, None]
    voters = used["votes"][stored] & ~np.uint16(GUILTY_BIT)
    return bool(
        (disputes["state"] <= max(DisputeState)).all()
        and (used["num_votes"] <= MAX_TIE_BREAKER_SEATS).all()
        and (parties < num_clients).all()
        and (voters < num_clients).all()
    )
