"""Whether a client may hope to take part in a run: asked once, before anything is opened or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import MAX_CLIENTS, RunState
from psyche_py.errors import RunStateError, VersionMismatch

if TYPE_CHECKING:
    from psyche_py.client.options import ClientOptions
    from psyche_py.coordinator.state import CoordinatorAccount


def check_run(account: CoordinatorAccount, options: ClientOptions, signer: bytes) -> None:
    """Refuse to start where joining cannot work. Raises RunStateError or VersionMismatch."""
    name = f"Run {options.run_id!r}"
    if account.run_state is RunState.Finished:
        raise RunStateError(f"{name} is finished.", "Pick another one: run-manager list-runs")
    if account.run_state is RunState.Uninitialized:
        raise RunStateError(
            f"{name} has not been started yet.",
            "Its owner starts it: run-manager set-paused --resume",
        )
    if account.run_state is RunState.Paused and not options.wait:
        raise RunStateError(
            f"{name} is paused.", "Its owner resumes it. With --wait the client waits for that."
        )
    if account.find_entry(signer) is None and not account.has_room:
        raise RunStateError(
            f"{name} is full: all {MAX_CLIENTS} clients are in, or have points to claim.",
            "Pick another one: run-manager list-runs",
        )
    wanted = account.client_version
    if wanted not in ("", "test", options.client_version):
        raise VersionMismatch(
            f"{name} wants client version {wanted!r}, this is {options.client_version!r}.",
            "Install that version.",
        )
