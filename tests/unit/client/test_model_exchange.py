"""The whole exchange with real trainers: peers, our own checkpoint, the run's checkpoint at last."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from attested_epochs import CLIENTS, ONE, UNKNOWN, make_config_driver, make_warmup, run_epoch
from hub_server import COMMIT, serve_hub
from shared_models import Log, offer, open_mesh, run

from psyche_py.client.checkpoint import save_checkpoint
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.options import ClientOptions
from psyche_py.client.sharing import LAST_RESORT_SECONDS, LoadedShare, ModelExchange, get_pieces_directory
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.model.sharing import ModelSnapshot
from psyche_py.p2p.memory import MemoryNetwork


@pytest.fixture
def options(tmp_path: Path, shards: Path) -> ClientOptions:
    return ClientOptions("run", data_dir=shards, checkpoint_dir=tmp_path / "checkpoints", device="cpu")


@pytest.fixture
def trained(options: ClientOptions, nano: Path) -> ModelSnapshot:
    """A model that no configuration gives."""
    jobs, account = make_jobs(options, nano), make_account(nano)
    jobs.load_from_config(account)
    jobs.allow_training()
    trained = jobs.train(0, [(0, 3)], 1, {}, 0)
    assert trained is not None
    jobs.apply([trained[0].payload], 1, 2)
    return jobs.export()


def make_account(nano: Path) -> CoordinatorAccount:
    return make_config_driver(nano).account


def make_jobs(options: ClientOptions, nano: Path) -> TrainerJobs:
    jobs = TrainerJobs(options)
    jobs.open_data(make_account(nano))
    return jobs


def make_exchange(
    node: MemoryNetwork, options: ClientOptions, nano: Path, seen: list[CoordinatorAccount]
) -> tuple[ModelExchange, Log]:
    log = Log()
    exchange = ModelExchange(node, log.sink, make_jobs(options, nano), options)
    for account in seen:
        exchange.see(account)
    return exchange, log


def test_a_joiner_takes_what_was_attested_and_passes_it_on(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        seen, driver = make_warmup(nano, trained.digest)
        async with open_mesh(3) as (_, node, others):
            offer(others[0], trained, 1)
            exchange, log = make_exchange(node, options, nano, seen)
            loaded = await exchange.load([other.key for other in others], driver.account)
            assert loaded is not None
            assert (loaded.digest, loaded.source, loaded.num_peers) == (trained.digest, "P2P", 1)
            assert not log.get("warning")
            directory = get_pieces_directory(options)
            assert directory is not None
            assert not directory.exists(), "nothing of it is needed any more"

            second, _ = make_exchange(others[1], options, nano, seen)
            again = await second.load([node.key], driver.account)
            assert again is not None
            assert again.digest == trained.digest
            exchange.stop_live_share()
            third, _ = make_exchange(others[2], options, nano, seen)
            with trio.move_on_after(10) as scope:
                await third.load([node.key], driver.account)
            assert scope.cancelled_caught, "what is about to change is not shared any more"

    run(main)


def test_when_the_epoch_wants_us_no_more_the_fetch_ends(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        seen, driver = make_warmup(nano, trained.digest)
        async with open_mesh(1) as (_, node, others):
            exchange, log = make_exchange(node, options, nano, seen)
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    await trio.sleep(5)
                    exchange.see(seen[-1])

                nursery.start_soon(end)
                assert await exchange.load([others[0].key], driver.account) is None
            assert not log.get("model_offender")

    run(main)


def test_our_own_checkpoint_spares_the_way(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        seen, driver = make_warmup(nano, trained.digest)
        assert options.checkpoint_dir is not None
        save_checkpoint(trained, options.checkpoint_dir, run_id="run", step=9, epoch=0)
        async with open_mesh(1) as (_, node, others):
            exchange, _ = make_exchange(node, options, nano, seen)
            loaded = await exchange.load([others[0].key], driver.account)
            assert loaded is not None
            assert (loaded.digest, loaded.source) == (trained.digest, "own checkpoint")
            assert others[0].stats.sent["request"] == 0

    run(main)


def test_what_a_client_kept_on_disk_serves_everybody(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    """All were stopped at once; of the next epoch's clients one has the model, behind a later checkpoint."""

    async def main() -> None:
        _, driver = make_warmup(nano, trained.digest)
        assert options.checkpoint_dir is not None
        save_checkpoint(trained, options.checkpoint_dir, run_id="run", step=9, epoch=0)
        jobs = make_jobs(options, nano)
        jobs.load_from_config(make_account(nano))
        save_checkpoint(jobs.export(), options.checkpoint_dir, run_id="run", step=11, epoch=0)
        empty = replace(options, checkpoint_dir=None)
        async with open_mesh(1) as (_, node, others):
            owner, _ = make_exchange(node, options, nano, [])
            joiner, log = make_exchange(others[0], empty, nano, [])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(owner.load, [others[0].key], driver.account)
                loaded = await joiner.load([node.key], driver.account)
            assert loaded is not None
            assert (loaded.digest, loaded.source) == (trained.digest, "P2P")
            assert not log.get("model_offender")

    run(main)


def test_the_replica_in_memory_needs_no_disk(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        async with open_mesh(0) as (_, node, _others):
            exchange, _ = make_exchange(node, replace(options, checkpoint_dir=None), nano, [])
            jobs = exchange._jobs
            jobs.load_from_config(make_account(nano))
            _, driver = make_warmup(nano, jobs.trainer.digest())
            loaded = await exchange.load([], driver.account)
            assert loaded is not None
            assert loaded.source == "memory"
            assert exchange._share.epoch == driver.account.epoch

    run(main)


def test_whoever_joins_finds_the_attested_model_among_liars(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        seen, driver = make_warmup(nano, trained.digest)
        async with open_mesh(3) as (_, node, others):
            exchange, _ = make_exchange(node, options, nano, seen)
            with trio.move_on_after(5):  # nobody has it yet; then the client is killed
                await exchange.load([other.key for other in others], driver.account)
            liar = make_jobs(options, nano)
            liar.load_from_config(seen[0])
            for other in others[:2]:
                offer(other, liar.export(), 1)
            offer(others[2], trained, 1)
            # started again it has seen no witnesses, and most peers have something else
            again, log = make_exchange(node, options, nano, [])
            loaded = await again.load([other.key for other in others], driver.account)
            assert loaded is not None
            assert loaded.digest == trained.digest
            assert not log.get("warning")

    run(main)


def test_without_an_attested_digest_most_peers_decide_and_the_user_is_told(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        _, driver = make_warmup(nano, UNKNOWN)
        async with open_mesh(3) as (_, node, others):
            for other in others[:2]:
                offer(other, trained, 1)
            exchange, log = make_exchange(node, options, nano, [driver.account])
            loaded = await exchange.load([other.key for other in others], driver.account)
            assert loaded is not None
            assert loaded.digest == trained.digest
            assert "no quorum attested the model" in log.get("warning")[0]["message"]

    run(main)


@pytest.mark.parametrize("is_right", [True, False])
def test_the_runs_checkpoint_is_the_last_resort_if_it_is_the_right_model(
    options: ClientOptions, nano: Path, trained: ModelSnapshot, tmp_path: Path, is_right: bool
) -> None:
    async def main() -> None:
        directory = save_checkpoint(trained, tmp_path / "shared", run_id="run", step=9, epoch=0)
        driver = make_config_driver(nano)
        seen = run_epoch(driver, [trained.digest if is_right else ONE] * 4)
        driver.ok("checkpoint", client=0, kind=6, repo=str(directory), revision="")
        driver.join(*CLIENTS)
        driver.tick_at_deadline()
        async with open_mesh(1) as (_, node, others):
            exchange, log = make_exchange(node, options, nano, seen)
            started, loaded = trio.current_time(), None
            with trio.move_on_after(4 * LAST_RESORT_SECONDS):
                loaded = await exchange.load([others[0].key], driver.account)
            assert trio.current_time() - started >= LAST_RESORT_SECONDS, "peers are asked first"
            if is_right:
                assert loaded is not None
                assert (loaded.digest, loaded.source, loaded.num_peers) == (trained.digest, "Local", 0)
            else:
                assert loaded is None
                assert any("is not the model" in event["message"] for event in log.get("warning"))

    run(main)


def test_a_hub_repository_is_a_last_resort_too(
    options: ClientOptions,
    nano: Path,
    trained: ModelSnapshot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the real library from a hub on loopback, though this process has downloads switched off."""
    directory = save_checkpoint(trained, tmp_path / "shared", run_id="run", step=9, epoch=0)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    async def load(repo: str) -> tuple[LoadedShare | None, Log]:
        driver = make_config_driver(nano)
        seen = run_epoch(driver, [trained.digest] * 4)
        driver.ok("checkpoint", client=0, kind=2, repo=repo, revision="main")
        driver.join(*CLIENTS)
        driver.tick_at_deadline()
        async with open_mesh(1) as (_, node, others):
            exchange, log = make_exchange(node, options, nano, seen)
            with trio.move_on_after(4 * LAST_RESORT_SECONDS):
                return await exchange.load([others[0].key], driver.account), log
        return None, log

    async def main() -> None:
        loaded, _ = await load("org/model")
        assert loaded is not None
        assert (loaded.digest, loaded.source, loaded.num_peers) == (trained.digest, "Hub", 0)
        missing, log = await load("org/gone")
        assert missing is None
        assert any("org/gone from the Hub: 404" in event["message"] for event in log.get("warning"))

    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with serve_hub("org/model", directory) as (endpoint, requests):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        run(main)
    weights = f"GET /org/model/resolve/{COMMIT}/model.safetensors"
    assert requests.count(weights) == 1


def test_a_donor_keeps_its_copy_until_the_rounds_are_under_way(
    options: ClientOptions, nano: Path, trained: ModelSnapshot
) -> None:
    async def main() -> None:
        seen, driver = make_warmup(nano, trained.digest)
        async with open_mesh(0) as (_, node, _others):
            exchange, _ = make_exchange(node, options, nano, seen)
            exchange.offer(1, trained)
            exchange.see(driver.account)
            assert exchange._share.epoch == 1
            for client in CLIENTS:
                index = driver.account.find_epoch_client(driver.get_signer(client))
                driver.ok("warmup_witness", client=client, index=index)
            while driver.account.current_round.height < 4:
                exchange.see(driver.account)
                assert exchange._share.epoch == 1
                driver.wait(1)
                driver.attest(CLIENTS)
            exchange.see(driver.account)
            assert exchange._share.epoch == -1

    run(main)
