"""Shards and a tiny model for tests that train."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# machines are shared: no example is judged by the clock
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# a shell that starts us in the background has SIGINT ignored, and our child processes would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
SLOW_PLACES = (
    "tests/attacks/",
    "tests/cli/test_cli_airdrop.py",
    "tests/cli/test_cli_authorization.py",
    "tests/cli/test_cli_bad_input.py",
    "tests/cli/test_cli_bond.py",
    "tests/cli/test_cli_data.py",
    "tests/cli/test_cli_deploy.py",
    "tests/cli/test_cli_money.py",
    "tests/cli/test_cli_owner.py",
    "tests/cli/test_cli_pool.py",
    "tests/unit/sim/",
    "tests/unit/verify/",
    "tests/conformance/test_programs_",
    "tests/conformance/test_rule_book",
    "tests/conformance/test_witness_collusion.py",
    "tests/integration/test_chain_mining_pool.py",
    "tests/unit/client/test_checkpoint.py::test_a_file_that_cannot_grow_leaves_the_old_checkpoint_and_nothing_else",
    "tests/unit/client/test_checkpoint.py::test_transformers_loads_a_checkpoint_and_generates_text",
    "tests/unit/client/test_evidence_desk.py",
    "tests/unit/client/test_kept_memory.py",
    "tests/unit/localnet/test_localnet_history.py::test_a_node_under_traffic_stops_growing",
    "tests/unit/client/test_machine_verification.py",
    "tests/unit/client/test_verification_jobs.py",
    "tests/unit/client/test_model_exchange.py",
    "tests/unit/distro/test_distro_sharded.py",
    "tests/unit/client/test_trainer.py::test_three_trainers_learn_and_stay_equal_over_delayed_rounds",
    "tests/unit/distro/test_distro_triton.py::test_folding_compiles",
    "tests/unit/distro/test_distro_triton.py::test_kernels_in_the_interpreter",
    "tests/unit/distro/test_distro_triton.py::test_no_multiplication_of_a_weight_is_fused",
    "tests/unit/distro/test_distro_codec.py::test_round_trip_of_any_shape_and_topk",
    "tests/unit/distro/test_distro_tiling.py::test_no_tensor_costs_more_than_one_and_a_half",
    "tests/unit/model/test_initialize.py::test_other_processes_make_the_same_weights",
    "tests/unit/model/test_loader.py::test_several_threads_may_load_at_once",
)
"""Beginnings of the names of tests that `make test-fast` leaves out: thorough rather than quick."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW_PLACES):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token shards of the project's own licence: real English, enough for a tiny model."""
    from psyche_py.data.prepare import prepare_shards

    directory = tmp_path_factory.mktemp("data")
    text = directory / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text() * 3)
    prepare_shards([text], directory / "shards", vocab_size=512)
    return directory / "shards"


@pytest.fixture(scope="session")
def nano() -> Path:
    """Configuration of the tiny model."""
    return ROOT / "configs" / "models" / "nano" / "config.json"
