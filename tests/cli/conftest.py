"""A localnet for all tests of the command line, and wallets with money on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)  # importlib mode puts no test directory there

from cli_process import Cli  # noqa: E402
from localnet_process import Localnet, running_localnet  # noqa: E402


@pytest.fixture(scope="session")
def localnet() -> Iterator[Localnet]:
    with running_localnet() as node:
        yield node


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Without a cluster."""
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def chain(localnet: Localnet, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """With the localnet, one home for the tests of a file."""
    return Cli(tmp_path_factory.mktemp("home"), localnet.rpc_url)


@pytest.fixture(scope="module")
def owner(chain: Cli) -> Path:
    return chain.make_wallet("owner", 20)


@pytest.fixture(scope="module")
def stranger(chain: Cli) -> Path:
    return chain.make_wallet("stranger", 1)
