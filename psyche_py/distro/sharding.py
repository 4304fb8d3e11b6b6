"""Parameters spread over several processes (DTensor): gathered one at a time, put back as shards.

Every process of the mesh then does the same work on the same numbers, so sharded and whole replicas agree to
the bit; all of them must call the optimizer together. Momentum is kept whole by each process.
"""

from __future__ import annotations

import torch
from torch import Tensor

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Replicate

    def is_sharded(x: Tensor) -> bool:
        """Whether a tensor is only a part of what it stands for."""
        return isinstance(x, DTensor)

    @torch.no_grad()
    def gather(x: Tensor) -> Tensor:
        """All of a sharded tensor, contiguous and in memory of its own; any other tensor itself."""
        return x.full_tensor().clone(memory_format=torch.contiguous_format) if isinstance(x, DTensor) else x

    @torch.no_grad()
    def put_back(whole: Tensor, target: Tensor) -> None:
        """Write this process's part of ``whole``, which all have, into a sharded tensor; no communication."""
        assert isinstance(target, DTensor)
        mesh = target.device_mesh
        everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        get_local(target).copy_(get_local(everywhere.redistribute(placements=target.placements)))

    @torch.no_grad()
    def get_local(x: Tensor) -> Tensor:
        """The part of a tensor that is here."""
        return x.to_local() if isinstance(x, DTensor) else x

else:  # a torch without distributed has no sharded tensors

    def is_sharded(x: Tensor) -> bool:
        """Never."""
        return False

    def gather(x: Tensor) -> Tensor:
        """The tensor itself."""
        return x

    def put_back(whole: Tensor, target: Tensor) -> None:
        """As for sharded tensors: copy."""
        target.copy_(whole)

    def get_local(x: Tensor) -> Tensor:
        """The tensor itself."""
        return x
