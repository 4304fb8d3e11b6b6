"""DTensor parameters, spread over two processes, end with the bits that whole ones end with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from sharded_run import make_parameters, train

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(180)]

CHILD = Path(__file__).with_name("sharded_child.py")


def test_sharded_and_whole_parameters_end_with_the_same_bits(tmp_path: Path) -> None:
    path = os.pathsep.join(part for part in sys.path if part)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    children = [
        subprocess.Popen(
            [sys.executable, CHILD, tmp_path, str(rank)], env=environment, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        for child in children:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors.decode()
    finally:
        for child in children:
            child.kill()
            child.wait()
    expected = train(make_parameters(), lambda name, x: x)
    assert len({digest for pair in expected["digests"] for digest in pair}) > len(expected["digests"])
    for rank in range(2):
        found = torch.load(tmp_path / f"result{rank}", weights_only=True)
        assert found["payloads"] == expected["payloads"]
        assert torch.equal(found["momentum"], expected["momentum"])
        assert found["digests"] == expected["digests"]
