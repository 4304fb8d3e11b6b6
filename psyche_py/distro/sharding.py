"""Parameters spread over several processes (DTensor): gathered one at a time, put back as shards.

Every process of the mesh then does the same work on the same numbers, so sharded and whole replicas agree to
the bit; all of them must call the optimizer together. Momentum is kept whole by each process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(x: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is only a part of what it stands for."""
    # who has such tensors has imported their module; for all others that would cost a second
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(x, kind)


@torch.no_grad()
def gather(x: Tensor) -> Tensor:
    """All of a sharded tensor, contiguous and in memory of its own; any other tensor itself."""
    return x.full_tensor().clone(memory_format=torch.contiguous_format) if is_sharded(x) else x


@torch.no_grad()
def put_back(whole: Tensor, target: Tensor) -> None:
    """Write this process's part of ``whole``, which all have, into a sharded tensor; no communication."""
    from torch.distributed.tensor import DTensor, Replicate

    assert is_sharded(target)
    mesh = target.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    get_local(target).copy_(get_local(everywhere.redistribute(placements=target.placements)))


@torch.no_grad()
def get_local(x: Tensor) -> Tensor:
    """The part of a tensor that is here."""
    return x.to_local() if is_sharded(x) else x
