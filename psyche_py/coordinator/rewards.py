"""Points: whole numbers, spread exactly."""

from __future__ import annotations

from collections.abc import Sequence


def compute_shares(total: int, weights: Sequence[int]) -> list[int]:
    """Spread ``total`` points in proportion to ``weights`` by largest remainder.

    The shares add up to ``total`` whenever any weight is above zero; ties go to the lower index.
    """
    sum_weights = sum(weights)
    if sum_weights == 0:
        return [0] * len(weights)
    shares = [total * weight // sum_weights for weight in weights]
    remainders = [total * weight % sum_weights for weight in weights]
    left = total - sum(shares)
    order = sorted(range(len(weights)), key=lambda i: (-remainders[i], i))
    for i in order[:left]:
        shares[i] += 1
    return shares
