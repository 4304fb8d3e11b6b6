"""The real client in a process of its own, with a trainer that misbehaves when a file tells it to.

    python puppet_client.py ORDERS.json join -r RUN ...

While ORDERS.json says {"order": NAME}, every batch or update is done as NAME says; without the file it is
honest.

    garbage     the payload of a trained batch is replaced by random bytes of the same length
    slow        a batch takes ten seconds more
    flip        one weight is changed, once, before the next update; the order is then taken back
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from psyche_py.cli.main import main
from psyche_py.client import runtime
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.trainer import ApplyReport, TrainResult

SLOW_SECONDS = 10.0
ORDERS = Path(sys.argv.pop(1))


def get_order() -> str:
    """What to do wrong now; empty: nothing."""
    return json.loads(ORDERS.read_text())["order"] if ORDERS.exists() else ""


class PuppetJobs(TrainerJobs):
    """See the module."""

    def train(
        self,
        batch_start: int,
        batch_end: int,
        step: int,
        received: Sequence[bytes],
        repeats: Sequence[tuple[int, int]],
    ) -> TrainResult | None:
        result = super().train(batch_start, batch_end, step, received, repeats)
        order = get_order()
        if result is None or order not in ("garbage", "slow"):
            return result
        if order == "slow":
            time.sleep(SLOW_SECONDS)
            return result
        return replace(result, payload=os.urandom(len(result.payload)))

    def apply(self, payloads: Sequence[bytes], step: int) -> ApplyReport:
        if get_order() == "flip":
            ORDERS.unlink()
            parameter = next(iter(self.trainer._parameters.values()))
            with torch.no_grad():
                parameter.view(-1)[0] += 1.0
        return super().apply(payloads, step)


if __name__ == "__main__":
    runtime.TrainerJobs = PuppetJobs  # type: ignore[misc]
    main()
