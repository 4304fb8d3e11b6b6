"""Looks for names whose program address takes long to derive: each bump that is on the curve costs a try.

A try costs 1,500 compute units, and each further one is half as likely, so that even somebody who looks for
dear names (of their own, at their own cost) through 2^40 of them adds 40,000 units to what is found here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from solders.keypair import Keypair
from solders.pubkey import Pubkey

NUM_CANDIDATES = 3000
Seeds = tuple[Sequence[bytes], Pubkey]
"""Seeds of an address, and the program that it belongs to."""


def make_candidate(number: int) -> Keypair:
    """Some wallet."""
    return Keypair.from_seed(hashlib.sha256(f"candidate {number}".encode()).digest())


def make_run_id(number: int) -> str:
    """Some run id of the greatest length."""
    return hashlib.sha256(f"run {number}".encode()).hexdigest()[:32]


def find_worst_number(make_seeds: Callable[[int], Sequence[Seeds]]) -> int:
    """The number below NUM_CANDIDATES whose addresses have the lowest bumps, taken together."""

    def sum_bumps(number: int) -> int:
        return sum(Pubkey.find_program_address(list(s), program)[1] for s, program in make_seeds(number))

    return min(range(NUM_CANDIDATES), key=sum_bumps)


def find_worst_wallet(make_seeds: Callable[[bytes], Sequence[Seeds]]) -> Keypair:
    """The candidate whose addresses, by its key, have the lowest bumps."""
    number = find_worst_number(lambda number: make_seeds(bytes(make_candidate(number).pubkey())))
    return make_candidate(number)
