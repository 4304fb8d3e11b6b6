"""Tests of the newest runtime: `make test-newest` runs them in .venv-newest, elsewhere they are passed by."""

from importlib.metadata import version

collect_ignore_glob = []
if version("solders").startswith(("0.26", "0.27")):
    # LiteSVM of 0.26 has no upgradeable loader and another draft of SBPF v3
    collect_ignore_glob = ["test_*.py"]
