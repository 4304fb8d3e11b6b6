"""The numbers of a simulated economy. Points are whole; a round's honest pay is ROUND_POINTS of them."""

from __future__ import annotations

from dataclasses import dataclass

from psyche_py.coordinator.config import RunConfig
from psyche_py.sim.settings import Settings, make_run_config

ROUND_POINTS = 1000


@dataclass(frozen=True, slots=True)
class EconomySettings:
    """``slash_rounds`` and ``bond_rounds`` are in rounds' pay of an honest client."""

    num_epochs: int = 10
    epoch_rounds: int = 50
    verification_percent: int = 5
    num_tie_breakers: int = 9
    max_refusals: int = 3
    slash_rounds: int = 65
    bond_rounds: int = 65
    witness_nodes: int = 0

    @property
    def slash_points(self) -> int:
        """What a conviction takes."""
        return self.slash_rounds * ROUND_POINTS

    @property
    def bond_points(self) -> int:
        """What a wallet must have bonded to join."""
        return self.bond_rounds * ROUND_POINTS

    def compute_epoch_points(self, num_clients: int) -> int:
        """Points that an epoch shares: ROUND_POINTS for each client and round when all do their part."""
        return num_clients * self.epoch_rounds * ROUND_POINTS


def make_economy_config(settings: EconomySettings, num_clients: int) -> RunConfig:
    """The run's configuration. Raises ConfigError."""
    config = {
        "epoch_time": 1_000_000,
        "total_steps": 1_000_000,
        "init_min_clients": 2,
        "min_clients": 2,
        "global_batch_size_start": num_clients,
        "global_batch_size_end": num_clients,
        "verification_percent": settings.verification_percent,
        "verified_tiles": 64,
        "num_tie_breakers": settings.num_tie_breakers,
        "max_refusals": settings.max_refusals,
        "required_bond": settings.bond_points,
        "witness_nodes": settings.witness_nodes,
    }
    return make_run_config(Settings(config=config))
