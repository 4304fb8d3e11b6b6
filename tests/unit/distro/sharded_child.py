"""Two processes of one mesh train a sharded model; each writes what it said and where it ended.

sharded_child.py FOLDER RANK
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sharded_run import make_parameters, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (2,))

    def shard(name: str, x: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(x, mesh, [Shard(1 if name == "across" else 0)])

    named = {name: Parameter(shard(name, p.data)) for name, p in make_parameters().items()}
    result = train(named, shard)
    torch.save(result, folder / f"result{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
