"""Torch beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Run torch work in a worker thread. It is not abandoned on cancel: it owns the weights."""
    return await trio.to_thread.run_sync(partial(function, *args))
