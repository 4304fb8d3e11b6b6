"""What takes a client seconds before its first batch and needs no model: libraries and compiled kernels.

A client does it while it waits for others. Done in the warm-up, as soon as somebody asks for it, everybody
would wait for the slowest; kernels would cost the first round, and its results with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psyche_py.distro import DistroConfig


def get_preparations(device: str, make_config: Callable[[], DistroConfig]) -> Sequence[Callable[[], None]]:
    """Steps to take in this order, in a worker thread: who leaves waits for one of them, not for all.

    device, make_config: as the trainer will have them. The last step raises UsageError when there is no
    such device, and all raise ImportError for what is not installed.
    """
    return _import_trainer, _import_transformers, partial(_load_kernels, device, make_config)


def _import_trainer() -> None:
    import psyche_py.client.trainer  # noqa: F401


def _import_transformers() -> None:
    from psyche_py.model.loader import import_ahead

    import_ahead()


def _load_kernels(device: str, make_config: Callable[[], DistroConfig]) -> None:
    from psyche_py.client.trainer import choose_device
    from psyche_py.distro.ahead import load_kernels_ahead

    load_kernels_ahead(make_config(), choose_device(device))
