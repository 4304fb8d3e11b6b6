"""A dict that forgets the oldest half of what it holds when it is full.

Two plain dicts, the younger and the older, take half the memory of an ordered one, and let go of their oldest
entries all at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Generations(Generic[K, V]):
    """Never holds more than ``max_items``, and always the last half of that many that were put in."""

    __slots__ = ("_max_young", "_old", "_young")

    def __init__(self, max_items: int) -> None:
        self._max_young = max(1, max_items // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: K) -> bool:
        return key in self._young or key in self._old

    def get(self, key: K, default: V) -> V:
        """What was put in under ``key`` last, or ``default``."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
        return default if value is None else value

    def put(self, key: K, value: V) -> None:
        """Keep ``value`` (not None), as the youngest."""
        self._old.pop(key, None)
        if key not in self._young and len(self._young) >= self._max_young:
            self._young, self._old = {}, self._young
        self._young[key] = value
