"""``python -m psyche_py.chain.localnet``: the local validator without the rest of the command line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from psyche_py.chain.localnet.server import LocalnetConfig, LocalnetInfo, serve
from psyche_py.errors import PsycheError


def main() -> int:
    """Run until a signal. Prints one JSON line when ready; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m psyche_py.chain.localnet", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--rpc-port", type=int, default=8899, help="JSON-RPC port, 0 for a free one")
    parser.add_argument("--ws-port", type=int, help="websocket port (default: the one after --rpc-port)")
    parser.add_argument("--ledger", type=Path, help="directory that survives a restart")
    parser.add_argument("--reset", action="store_true", help="begin a new ledger")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def on_ready(info: LocalnetInfo) -> None:
        print(json.dumps(asdict(info)), flush=True)

    try:
        serve(LocalnetConfig(given.host, given.rpc_port, given.ws_port, given.ledger, given.reset), on_ready)
    except PsycheError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
