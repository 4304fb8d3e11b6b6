"""The real client in a process of its own, with a trainer that misbehaves when a file tells it to.

    python puppet_client.py ORDERS.json join -r RUN ...

While ORDERS.json says {"order": NAME}, every batch or update is done as NAME says; without the file it is
honest.

    garbage     the payload of a trained batch is replaced by random bytes of the same length
    slow        a batch takes ten seconds more
    flip        one weight is changed, once, before the next update; the order is then taken back
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from injected_jobs import inject_jobs

from psyche_py.cli.main import main
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.trainer import ApplyReport

SLOW_SECONDS = 10.0
ORDERS = Path(sys.argv.pop(1))


def get_order() -> str:
    """What to do wrong now; empty: nothing."""
    return json.loads(ORDERS.read_text())["order"] if ORDERS.exists() else ""


class PuppetJobs(TrainerJobs):
    """See the module."""

    def train(self, *args: Any) -> Any:
        """See TrainerJobs.train."""
        trained, order = super().train(*args), get_order()
        if trained is None or order not in ("garbage", "slow"):
            return trained
        if order == "slow":
            time.sleep(SLOW_SECONDS)
            return trained
        result, commitment = trained
        payload = os.urandom(len(result.payload))
        garbage = replace(commitment, payload_hash=hashlib.sha256(payload).digest())
        return replace(result, payload=payload), garbage

    def apply(self, payloads: Sequence[bytes], step: int, height: int) -> ApplyReport:
        if get_order() == "flip":
            ORDERS.unlink()
            parameter = next(iter(self.trainer._parameters.values()))
            with torch.no_grad():
                parameter.view(-1)[0] += 1.0
        return super().apply(payloads, step, height)


if __name__ == "__main__":
    inject_jobs(PuppetJobs)
    main()
