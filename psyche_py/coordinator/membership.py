"""Who is in the run: joining, leaving, and being found without authorization.

See psyche_py.coordinator.transition, which shows these as its own.
"""

from __future__ import annotations

import numpy as np

from psyche_py.coordinator import tick
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.events import (
    find_client_entry,
    find_healthy_client,
    finish,
    refuse_unless,
    remove_client,
    tick_and_finish,
)
from psyche_py.coordinator.layout import (
    AUTHORIZATION_PREFIX_BYTES,
    MAX_ADDRESS_KIND,
    MAX_CLIENTS,
    MAX_U64,
    RUNNING_EPOCH,
    ClientState,
    Record,
    RunState,
    copy_record,
    set_bytes,
)
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import compute_debt, find_entry, find_p2p_key, find_replaceable_entry


def process_join(
    account: CoordinatorAccount,
    *,
    signer: bytes,
    p2p_key: bytes,
    address_hint: bytes,
    authorization: bytes,
    bond: int = 0,
    now: int,
    seed: int,
) -> CoordinatorAccount:
    """Enter ``signer`` for the next epoch; the program has checked that ``authorization`` (an address, 32
    bytes) lets it, that the p2p key has signed, and that ``bond`` (units of collateral) is bonded for it.

    Raises InvalidAddressHint, InvalidRunState (Finished), BondMissing, P2pKeyInUse, ClientKeysInUse,
    ClientsFull.
    """
    record = copy_record(account.record)
    refuse_unless(address_hint[0] <= MAX_ADDRESS_KIND, ErrorCode.InvalidAddressHint)
    refuse_unless(tick.get_state(record) is not RunState.Finished, ErrorCode.InvalidRunState)
    number = find_entry(record, signer)
    _check_bond(record, number, bond)
    _check_p2p_key(record, number, p2p_key)
    entry = record["entries"][_add_entry(record, signer) if number is None else number]
    set_bytes(entry, "p2p_key", p2p_key)
    set_bytes(entry, "address_hint", address_hint)
    entry["active"] = record["next_active"]
    set_bytes(entry, "authorization", authorization[:AUTHORIZATION_PREFIX_BYTES])
    return tick_and_finish(account, record, now, seed)


def _check_bond(record: Record, number: int | None, bond: int) -> None:
    """What the bond still has to pay for a debt is not at stake any more."""
    required = int(record["config"]["required_bond"])
    if not required:
        return
    entry = record["entries"][number] if number is not None else None
    owed = (
        0 if entry is None else compute_debt(*(int(entry[name]) for name in ("earned", "slashed", "claimed")))
    )
    refuse_unless(bond >= min(required + owed, MAX_U64), ErrorCode.BondMissing)


def _check_p2p_key(record: Record, number: int | None, p2p_key: bytes) -> None:
    """A p2p key names one client, and stays as long as the client is in an epoch: peers know it by that."""
    holder = find_p2p_key(record, p2p_key)
    refuse_unless(holder is None or holder == number, ErrorCode.P2pKeyInUse)
    if number is not None and holder is None and tick.get_state(record) in RUNNING_EPOCH:
        refuse_unless(find_healthy_client(record, number) is None, ErrorCode.ClientKeysInUse)


def _add_entry(record: Record, signer: bytes) -> int:
    """A new entry: behind the others, or in a full list in the place of one that nobody misses."""
    number = int(record["num_entries"])
    if number < MAX_CLIENTS:
        record["num_entries"] = number + 1
    else:
        replaceable = find_replaceable_entry(record)
        if replaceable is None:
            raise CoordinatorError(ErrorCode.ClientsFull)
        number = replaceable
    record["entries"][number] = np.zeros((), record["entries"].dtype)
    set_bytes(record["entries"][number], "signer", signer)
    return number


def process_announce(
    account: CoordinatorAccount, *, signer: bytes, address_hint: bytes
) -> CoordinatorAccount:
    """``signer``, a client of the run, is to be reached at ``address_hint`` from now on.

    Lets no time act. Raises SignerNotAClient, InvalidAddressHint, InvalidRunState (Finished).
    """
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    refuse_unless(address_hint[0] <= MAX_ADDRESS_KIND, ErrorCode.InvalidAddressHint)
    refuse_unless(tick.get_state(record) is not RunState.Finished, ErrorCode.InvalidRunState)
    set_bytes(record["entries"][entry], "address_hint", address_hint)
    return finish(account, record)


def process_remove_unauthorized(
    account: CoordinatorAccount, *, entry: int, authorization: bytes, is_valid: bool, now: int, seed: int
) -> CoordinatorAccount:
    """Entry ``entry`` is out of the next epoch, since its ``authorization`` (an address) lets it no more.

    ``is_valid`` is what the authorization account says. Raises SignerNotAClient, WrongAccount,
    AuthorizationStillValid.
    """
    record = copy_record(account.record)
    refuse_unless(entry < int(record["num_entries"]), ErrorCode.SignerNotAClient)
    client = record["entries"][entry]
    kept = client["authorization"].tobytes()
    # zeros are an entry of an older layout, which kept none
    is_same = any(kept) and kept == authorization[:AUTHORIZATION_PREFIX_BYTES]
    refuse_unless(is_same, ErrorCode.WrongAccount)
    refuse_unless(not is_valid, ErrorCode.AuthorizationStillValid)
    client["active"] = 0
    return tick_and_finish(account, record, now, seed)


def process_leave(account: CoordinatorAccount, *, signer: bytes, now: int, seed: int) -> CoordinatorAccount:
    """``signer`` leaves the run; what it has earned stays. Raises SignerNotAClient."""
    record = copy_record(account.record)
    entry = find_client_entry(record, signer)
    record["entries"][entry]["active"] = 0
    index = find_healthy_client(record, entry)
    if index is not None and tick.get_state(record) in RUNNING_EPOCH:
        remove_client(record, index, ClientState.Withdrawn)
    return tick_and_finish(account, record, now, seed)
