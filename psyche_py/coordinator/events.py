"""What the events of the rule book share: refusing, finding the sender, ticking and moving the nonce."""

from __future__ import annotations

from psyche_py.coordinator import tick
from psyche_py.coordinator.errors import CoordinatorError, ErrorCode
from psyche_py.coordinator.layout import MAX_U64, ClientState, Record
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import find_entry, find_epoch_client, get_current_round


def refuse_unless(condition: object, code: ErrorCode) -> None:
    """Raises CoordinatorError(code) unless ``condition`` is true."""
    if not condition:
        raise CoordinatorError(code)


def finish(account: CoordinatorAccount, record: Record) -> CoordinatorAccount:
    """The account with its nonce moved, or the one we came with when no byte differs."""
    if record.tobytes() == account.record.tobytes():
        return account
    record["nonce"] = (int(record["nonce"]) + 1) & MAX_U64
    return CoordinatorAccount(record)


def tick_and_finish(account: CoordinatorAccount, record: Record, now: int, seed: int) -> CoordinatorAccount:
    """What most instructions end with: let time act, unless the run is halted."""
    tick.run_tick(record, now, seed)
    return finish(account, record)


def find_client_entry(record: Record, signer: bytes) -> int:
    """Entry index of the sender. Raises SignerNotAClient."""
    entry = find_entry(record, signer)
    if entry is None:
        raise CoordinatorError(ErrorCode.SignerNotAClient)
    return entry


def is_client(record: Record, index: int, entry: int, *, is_healthy: bool) -> bool:
    """Whether epoch client ``index`` exists, is ``entry``, and (if asked) is Healthy."""
    epoch = record["epoch_state"]
    if index >= int(epoch["num_clients"]):
        return False
    client = epoch["clients"][index]
    return int(client["entry"]) == entry and (not is_healthy or client["state"] == ClientState.Healthy)


def find_healthy_client(record: Record, entry: int) -> int | None:
    """Index of the epoch client that is ``entry``, if it is Healthy."""
    index = find_epoch_client(record, entry)
    return index if index is not None and is_client(record, index, entry, is_healthy=True) else None


def remove_client(record: Record, index: int, state: ClientState) -> None:
    """Epoch client ``index`` leaves the epoch in ``state`` at the current height."""
    client = record["epoch_state"]["clients"][index]
    client["state"] = state
    client["exited_height"] = get_current_round(record)["height"]
