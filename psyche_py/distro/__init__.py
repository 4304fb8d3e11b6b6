"""DisTrO: distributed training over the internet, a few hundred kilobytes per step instead of gigabytes.

Usable alone: ``from psyche_py.distro import DistroOptimizer, DistroConfig``. Importing it loads torch.
"""

from psyche_py.distro.config import DistroConfig
from psyche_py.distro.errors import DistroError, NonFiniteGradientError, PayloadError
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.optimizer import DistroOptimizer, DistroState
from psyche_py.distro.parameters import group_parameters
from psyche_py.distro.schedule import Constant, Cosine, Linear, Schedule, WarmupStableDecay

__all__ = [
    "Constant",
    "Cosine",
    "DistroConfig",
    "DistroError",
    "DistroOptimizer",
    "DistroState",
    "Linear",
    "NonFiniteGradientError",
    "PayloadError",
    "PayloadLayout",
    "Schedule",
    "WarmupStableDecay",
    "group_parameters",
]
