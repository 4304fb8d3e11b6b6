"""A localnet in a process of its own, on free loopback ports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

START_SECONDS = 30.0


@dataclass
class Localnet:
    """A running server."""

    process: subprocess.Popen[str]
    rpc_url: str
    ws_url: str
    genesis_hash: str
    is_restored: bool

    @property
    def rpc_port(self) -> int:
        return int(self.rpc_url.rsplit(":", 1)[1])

    def call(self, method: str, *params: Any) -> Any:
        """The result of a JSON-RPC call; raises AssertionError on an error."""
        answer = self.request(method, *params)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def request(self, method: str, *params: Any) -> Any:
        """The whole response to a JSON-RPC call."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return httpx.post(self.rpc_url, json=body, timeout=60).json()


def start_localnet(*arguments: str, python: str = sys.executable) -> Localnet:
    """Start one and wait until it answers. Stop it with ``process.kill`` or ``terminate``, then ``wait``.

    ``python``: the interpreter of another environment, for another solders.
    """
    command = [python, "-m", "psyche_py.chain.localnet", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()  # the server prints one line when it is up, or ends
    if not line:
        raise AssertionError(f"the localnet ended with exit code {process.wait(START_SECONDS)}")
    info = json.loads(line)
    return Localnet(process, info["rpc_url"], info["ws_url"], info["genesis_hash"], info["is_restored"])


def stop(localnet: Localnet, *, kill: bool = False) -> int:
    """End it by SIGTERM or SIGKILL; returns the exit code."""
    if localnet.process.poll() is None:
        if kill:
            localnet.process.kill()
        else:
            localnet.process.terminate()
    code = localnet.process.wait(60)
    if localnet.process.stdout is not None:
        localnet.process.stdout.close()
    return code


@contextmanager
def running_localnet(*arguments: str) -> Iterator[Localnet]:
    """One for the length of a block. Free ports unless ``--rpc-port`` is given."""
    ports = () if "--rpc-port" in arguments else ("--rpc-port", "0")
    localnet = start_localnet(*ports, *arguments)
    try:
        yield localnet
    finally:
        stop(localnet)
