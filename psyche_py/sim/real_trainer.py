"""Mode "real": the run's tiny model, trained by the client's own trainer on real token shards.

Every replica and every payload is real, so digests are equal only when the weights are; how long a batch
takes is the script's, since measured times would make each run another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.model_fetch import FetchedModel
from psyche_py.client.options import ClientOptions
from psyche_py.model.loader import build_for_peers, get_memory
from psyche_py.sim.chain import RUN_ID
from psyche_py.sim.trainer import HashTrainer, Result

if TYPE_CHECKING:
    from psyche_py.client import actions as act
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.world import World


class RealTrainer(HashTrainer):
    """See the module. Payloads and models that may still be asked for are in ``world``."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        data = Path(world.settings.data_path)
        self._jobs = TrainerJobs(ClientOptions(RUN_ID, data_dir=data, device="cpu", num_threads=1))
        self._is_open = False

    def load(self, account: CoordinatorAccount, weights: bytes | None) -> None:
        """See Trainer. Raises DataError when model or shards cannot be used."""
        if not self._is_open:
            self._jobs.open_data(account)
            self._is_open = True
        if weights is None:
            self.weights = self._jobs.load_from_config(account)
        else:
            model = self.world.models[weights]
            shapes = {name: tuple(tensor.shape) for name, tensor in model.tensors.items()}
            loaded = build_for_peers(model.config_json, shapes, model.files)
            for name, memory in get_memory(loaded).items():
                memory[:] = memoryview(model.tensors[name].numpy()).cast("B")
            self.weights = self._jobs.load_fetched(account, FetchedModel(loaded, weights, 1))
        self._jobs.start_epoch(account.start_step, account.is_cold_start_epoch)

    def train(self, job: act.Train) -> Result | None:
        """See Trainer."""
        self._jobs.allow_training()
        payloads = self.world.payloads
        foreseen = {index: payloads[digest] for index, digest in job.foreseen if digest in payloads}
        ranges = ((job.batch_start, job.batch_end), *job.repeats)
        trained = self._jobs.train(job.height, ranges, job.step, foreseen, self.number)
        if trained is None:
            return None
        result, _ = trained
        digest = self.world.put_payload(result.payload)
        return Result(digest, len(result.payload), result.loss)

    def apply(self, job: act.Apply) -> None:
        """See Trainer."""
        self.weights = self._jobs.apply(self._get_payloads(job.digests), job.step, job.height).digest

    def export(self) -> bytes:
        """See Trainer."""
        snapshot = self._jobs.export()
        self.world.models[snapshot.digest] = snapshot
        return snapshot.digest

    def _get_payloads(self, digests: Sequence[bytes]) -> list[bytes]:
        return [self.world.payloads[digest] for digest in digests]
