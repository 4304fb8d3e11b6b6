"""What a client prepares before there is a model: nothing slow is left for warm-up and first rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_py.client.preparation import get_preparations
from psyche_py.distro import DistroConfig
from psyche_py.errors import UsageError

PROGRAM = """
import json, sys
from pathlib import Path
from psyche_py.client.preparation import get_preparations
from psyche_py.distro import jit

def make_config():
    from psyche_py.distro import DistroConfig

    return DistroConfig(local_steps=int(sys.argv[2]))

for step in get_preparations("cpu", make_config):
    step()

import torch
from psyche_py.distro import LocalOptimizer, group_parameters, make_optimizer
from psyche_py.model.loader import load_from_config

def list_kernels():
    modules = [jit.load_kernels(name) for name in ("fold_kernels", "move_kernels", "codec_kernels")]
    kernels = [(name, kernel) for module in modules for name, kernel in vars(module).items()]
    found = [(name, kernel.signatures) for name, kernel in kernels if hasattr(kernel, "signatures")]
    return sorted({f"{name}{signature}" for name, signatures in found for signature in signatures})

kernels, modules = list_kernels(), set(sys.modules)
model = load_from_config(Path(sys.argv[1]), 1).model
imported = sorted(set(sys.modules) - modules)
optimizer = make_optimizer(group_parameters(model, make_config()), make_config())
tokens = torch.arange(64).reshape(2, 32)
for _ in range(2):
    with optimizer.lookahead(0.1):
        model(input_ids=tokens, use_cache=False).logits.square().mean().backward()
        if isinstance(optimizer, LocalOptimizer):
            optimizer.inner_step(0.1)
    payload = optimizer.step(0.1)
    optimizer.check_payload(payload)
    with optimizer.lookahead(0.1, [payload, payload]):
        pass
    optimizer.apply([payload] * 3, 0.1)
    optimizer.apply([payload], 0.1)
print(json.dumps({"before": kernels, "after": list_kernels(), "imported": imported}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [1, 4])
def test_loading_and_training_find_everything_there(nano: Path, local_steps: int) -> None:
    """In a process of its own: this one has imported and compiled things for other tests."""
    command = [sys.executable, "-c", PROGRAM, str(nano), str(local_steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["before"]
    assert told["after"] == told["before"], "kernels that the first rounds would have waited for"
    others = [
        name for name in told["imported"] if not name.startswith(("transformers.models.", "psyche_py."))
    ]
    assert len(others) < 20, others


def test_a_device_that_is_not_there_is_told_before_there_is_a_model() -> None:
    *_, last = get_preparations("cuda:99", DistroConfig)
    with pytest.raises(UsageError, match="cuda:99"):
        last()
