"""Who takes part in a simulated run, what it does instead of its work, and what that costs and earns."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_py.coordinator.reasons import Reason

FRAUD, REFUSAL = int(Reason.RESIDUAL), int(Reason.NO_ANSWER)
HONEST_CASE = (0, 0)
Case = tuple[int, int]
"""The reasons that clients of the first and of the second precision find in one message; 0: nothing."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One way to cheat.

    work:          share of a round's work that the cheat costs in a round in which it cheats
    cases:         what checks of its messages have found, of which one is drawn for each message
    period:        it cheats in one round of so many, by lot
    is_delivered:  whether an honest witness can attest its result
    accusation:    reason with which it accuses whoever it has to look at; 0: nobody
    verifies:      whether it looks at outsiders when it is a verifier
    votes_blindly: whether it says "not guilty" as a tie-breaker without looking
    """

    name: str
    work: float = 1.0
    cases: tuple[Case, ...] = (HONEST_CASE,)
    period: int = 1
    is_delivered: bool = True
    accusation: int = 0
    verifies: bool = True
    votes_blindly: bool = False


@dataclass(slots=True)
class Person:
    """Somebody in the run. ``gang`` is a number that friends share; who has none has no friends.

    ``precision`` 0 or 1: which of the two gradients its device computes.  ``moves_on``: after an ejection it
    comes back with another wallet, and not with the old one.
    """

    number: int
    wallet: int
    cheat: Cheat | None = None
    gang: int | None = None
    precision: int = 0
    moves_on: bool = False
    wallets: list[int] = field(default_factory=list)
    work: float = 0.0
    """Rounds' work done so far."""
    convictions: int = 0
    rounds_present: int = 0

    def is_friend(self, other: Person) -> bool:
        """Whether they act as one."""
        return self.gang is not None and self.gang == other.gang


@dataclass(frozen=True, slots=True)
class Result:
    """What somebody delivered in a round, and what a check of it would find."""

    case: Case = HONEST_CASE
    is_delivered: bool = True
