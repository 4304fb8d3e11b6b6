"""Loading compiled kernels. Numba is an extra (``pip install psyche-py[fast]``): all works without it."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import lru_cache
from types import ModuleType

# Sides that the kernels take: the fast transform halves them down to one, vectors want whole sixteens.
SIDES = (16, 32, 64)
MAX_TILE = SIDES[-1] ** 2
# What a kernel may write to in one call: two tiles, and then some.
SCRATCH_FLOATS = 3 * MAX_TILE

_logger = logging.getLogger(__name__)


@lru_cache(maxsize=8)
def load_kernels(name: str) -> ModuleType | None:
    """A module of kernels of this package, or None where numba is missing, switched off or cannot work."""
    if importlib.util.find_spec("numba") is None:
        _logger.info("numba is not installed: DisTrO runs on torch alone, about three times slower.")
        return None
    import numba

    if numba.config.DISABLE_JIT:
        _logger.info("numba is switched off: DisTrO runs on torch alone, about three times slower.")
        return None
    _outlive_full_disks()
    try:
        return importlib.import_module(f"psyche_py.distro.{name}")
    except RuntimeError as error:  # what numba raises where it can keep nothing on disk
        _logger.warning("DisTrO runs on torch alone: %s. Set NUMBA_CACHE_DIR to a writable folder.", error)
        return None


@lru_cache(maxsize=1)
def _outlive_full_disks() -> None:
    """A compiled kernel that finds no room on disk is as good; numba would raise where it was called."""
    from numba.core.caching import Cache

    keep = Cache.save_overload

    def try_to_keep(cache: object, signature: object, data: object) -> None:
        try:
            keep(cache, signature, data)
        except OSError as error:
            _logger.warning("A compiled kernel is not kept on disk, so the next start is slow: %s", error)

    Cache.save_overload = try_to_keep
