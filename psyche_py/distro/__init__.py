"""DisTrO: distributed training over the internet, a few hundred kilobytes per step instead of gigabytes.

Usable alone: ``from psyche_py.distro import DistroOptimizer, DistroConfig``. Importing it loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.errors import DistroError, NonFiniteGradientError, PayloadError
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.local import LocalOptimizer, LocalState
from psyche_py.distro.optimizer import DistroOptimizer, DistroState
from psyche_py.distro.parameters import NamedParameters, ParamGroup, group_parameters
from psyche_py.distro.schedule import Constant, Cosine, Linear, Schedule, WarmupStableDecay

__all__ = [
    "Constant",
    "Cosine",
    "DistroConfig",
    "DistroError",
    "DistroOptimizer",
    "DistroState",
    "Linear",
    "LocalOptimizer",
    "LocalState",
    "NonFiniteGradientError",
    "PayloadError",
    "PayloadLayout",
    "Schedule",
    "WarmupStableDecay",
    "group_parameters",
    "make_optimizer",
]


def make_optimizer(
    params: NamedParameters | Sequence[ParamGroup], config: DistroConfig
) -> DistroOptimizer | LocalOptimizer:
    """The optimizer that the configuration asks for: local steps where it has more than one."""
    return LocalOptimizer(params, config) if config.is_local else DistroOptimizer(params, config)
