"""A dict that forgets its older half."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p.generations import Generations


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=200), st.integers(2, 20))
def test_it_holds_the_last_half_and_never_more_than_all(puts: list[tuple[int, int]], max_items: int) -> None:
    memory: Generations[int, int] = Generations(max_items)
    latest: dict[int, int] = {}
    for key, value in puts:
        memory.put(key, value)
        latest.pop(key, None)
        latest[key] = value
        assert len(memory) <= max_items
        for young in list(latest)[-(max_items // 2) :]:
            assert young in memory
            assert memory.get(young, 0) == latest[young]
        for known in latest:
            assert memory.get(known, 0) in (0, latest[known])
            assert (known in memory) == (memory.get(known, 0) > 0)


def test_the_smallest_holds_one() -> None:
    memory: Generations[str, int] = Generations(1)
    memory.put("a", 1)
    assert "a" in memory
    assert memory.get("b", 7) == 7
