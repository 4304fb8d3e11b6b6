"""A mining pool in plain Python, written from docs/mining-pool.md and not from the program."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PoolModel:
    """Each act returns the name of the refusal, or None when it was done. Amounts are base units."""

    num_lenders: int
    max_deposit: int = 0
    extracted: int = 0
    vault: int = 0
    repaid: int = 0
    is_enabled: bool = False
    is_frozen: bool = False
    deposited: list[int] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deposited, self.claimed = [0] * self.num_lenders, [0] * self.num_lenders

    @property
    def total(self) -> int:
        return sum(self.deposited)

    @property
    def redeemable(self) -> int:
        """In the vault of repayments."""
        return self.repaid - sum(self.claimed)

    def get_share(self, who: int) -> int:
        """The floor of a lender's part of everything repaid."""
        return self.repaid * self.deposited[who] // self.total if self.total else 0

    def get_claimable(self, who: int) -> int:
        return self.get_share(who) - self.claimed[who]

    def limit(self, amount: int) -> str | None:
        if amount < self.total:
            return "ParamsMaxDepositIsBelowTotalDeposited"
        if self.total and amount > self.max_deposit:
            return "ParamsMaxDepositIsRaised"
        self.max_deposit = amount
        return None

    def deposit(self, who: int, amount: int) -> str | None:
        if self.is_frozen:
            return "PoolFreezeIsTrue"
        if self.is_enabled:
            return "PoolClaimingEnabledIsTrue"
        if self.total + amount > self.max_deposit:
            return "ParamsCollateralAmountIsTooLarge"
        self.deposited[who] += amount
        self.vault += amount
        return None

    def extract(self, amount: int) -> str | None:
        if self.is_frozen:
            return "PoolFreezeIsTrue"
        if amount > self.vault:
            return "ParamsCollateralAmountIsTooLarge"
        self.vault -= amount
        self.extracted += amount
        return None

    def enable(self) -> str | None:
        if self.is_frozen:
            return "PoolFreezeIsTrue"
        if self.is_enabled:
            return "PoolClaimingEnabledIsTrue"
        if not self.total:
            return "PoolTotalDepositedCollateralAmountIsZero"
        self.is_enabled = True
        return None

    def claim(self, who: int, amount: int) -> str | None:
        if self.is_frozen:
            return "PoolFreezeIsTrue"
        if not self.is_enabled:
            return "PoolClaimingEnabledIsFalse"
        if amount > self.get_claimable(who):
            return "ParamsRedeemableAmountIsTooLarge"
        self.claimed[who] += amount
        return None
