"""A client whose libraries and kernels take longer than the warm-up that it was to be part of."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from attested_epochs import make_warmup
from rulebook_driver import Driver
from shared_models import Log, open_mesh, run
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.client import ProgramClient
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.runs import RunHandle
from psyche_py.client import actions as act
from psyche_py.client.options import ClientOptions
from psyche_py.client.runtime import ClientRuntime
from psyche_py.coordinator.layout import RunState
from psyche_py.p2p.memory import MemoryNetwork


def make_runtime(driver: Driver, network: MemoryNetwork, log: Log, data: Path) -> ClientRuntime:
    """A client in the warm-up that ``driver`` is in, asked for the model."""
    chain = ProgramClient(LiteSvmBackend.create(), Keypair())
    handle = RunHandle("run", *[Pubkey.default()] * 4, account=driver.account)
    options = ClientOptions("run", data_dir=data, device="cpu")
    runtime = ClientRuntime(options, chain, handle, network, Keypair(), log.sink)
    runtime._jobs.open_data(driver.account)
    runtime._machine.account, runtime._machine.busy = driver.account, "load"
    return runtime


@pytest.mark.parametrize("is_late", [False, True])
def test_a_warm_up_that_ended_before_a_client_was_prepared_does_not_keep_it(
    nano: Path, shards: Path, is_late: bool
) -> None:
    """Nothing called the load off any more: it went on for ever, and the client did not join again."""

    async def main() -> None:
        _, driver = make_warmup(nano, b"\1" * 32)  # a model that nobody has
        async with open_mesh(1) as (_, node, others), trio.open_nursery() as nursery:
            log = Log()
            runtime = make_runtime(driver, node, log, shards)
            nursery.start_soon(runtime._load_model, act.LoadModel((others[0].key,)))
            await trio.sleep(1)
            if not is_late:
                runtime._prepared.set()
                await trio.sleep(5)
                assert runtime._machine.busy == "load"
            driver.tick_at_deadline()
            assert driver.account.run_state is RunState.WaitingForMembers
            runtime._machine.account = driver.account
            runtime._exchange.see(driver.account)
            runtime._prepared.set()
            with trio.fail_after(60):
                while runtime._machine.busy:
                    await trio.sleep(1)

    run(main)
