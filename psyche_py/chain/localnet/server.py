"""The local validator's process: ports, the slot clock, and an orderly end."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from psyche_py.chain.artifacts import read_all_programs
from psyche_py.chain.litesvm_engine import LiteSvmEngine
from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.dispatch import iter_answers
from psyche_py.chain.localnet.http_server import HttpServer
from psyche_py.chain.localnet.ledger import SEED_BYTES, Ledger
from psyche_py.chain.localnet.subscriptions import Hub
from psyche_py.chain.localnet.websocket_server import WebSocketServer
from psyche_py.errors import NetworkError, PsycheError, StorageError

SLOT_SECONDS = 0.4
ENGINE_HISTORY = 2000
"""The engine's own memory of transactions; the bank's history is the long one."""

MAX_PORT_TRIES = 50

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalnetConfig:
    """Where to listen and what to keep.

    ``ws_port`` None: the port after ``rpc_port``, where Solana's clients look for it. Port 0: any free one.
    ``ledger`` None: nothing is kept. ``reset``: begin a new ledger in place of the one that is there.
    """

    host: str = "127.0.0.1"
    rpc_port: int = 8899
    ws_port: int | None = None
    ledger: Path | None = None
    reset: bool = False
    slot_seconds: float = SLOT_SECONDS


@dataclass(frozen=True, slots=True)
class LocalnetInfo:
    """A localnet that is up."""

    rpc_url: str
    ws_url: str
    genesis_hash: str
    slot: int
    is_restored: bool


OnReady = Callable[[LocalnetInfo], None]


def serve(config: LocalnetConfig, on_ready: OnReady | None = None) -> None:
    """Run a localnet until SIGINT or SIGTERM. Raises NetworkError, StorageError, ChainError.

    ``on_ready`` is called once, when both ports answer.
    """
    trio.run(_serve_until_signal, config, on_ready)


async def _serve_until_signal(config: LocalnetConfig, on_ready: OnReady | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, _ungrouped(PsycheError):
        async with trio.open_nursery() as nursery:

            async def wait_for_signal() -> None:
                async for number in signals:
                    logger.info("%s: stopping", signal.Signals(number).name)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for_signal)
            await serve_localnet(config, on_ready)


@contextmanager
def _ungrouped(kind: type[Exception]) -> Iterator[None]:
    """Raise the first exception of ``kind`` in a group by itself; other groups pass as they are."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = group.subgroup(kind)
        if found is None:
            raise
        error: BaseException = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def serve_localnet(config: LocalnetConfig, on_ready: OnReady | None = None) -> None:
    """Run a localnet until cancelled; see :func:`serve`."""
    rpc_listeners, ws_listeners = await _open_ports(config)
    ledger = None
    try:
        if config.ledger is not None:
            ledger = Ledger.open(config.ledger, reset=config.reset, new_genesis_seed=os.urandom(SEED_BYTES))
        bank = open_bank(ledger, int(time.time()))
        info = LocalnetInfo(
            rpc_url=f"http://{_format_address(config.host, rpc_listeners)}",
            ws_url=f"ws://{_format_address(config.host, ws_listeners)}",
            genesis_hash=str(bank.engine.genesis_hash),
            slot=bank.slot,
            is_restored=bool(bank.history.blocks),
        )
        bank.advance(int(time.time()))
        await _run(bank, config, rpc_listeners, ws_listeners, info, on_ready)
    finally:
        for listener in [*rpc_listeners, *ws_listeners]:
            await trio.aclose_forcefully(listener)
        if ledger is not None:
            ledger.close()


def open_bank(ledger: Ledger | None, unix_timestamp: int) -> Bank:
    """A chain with our programs: a new one, or the one in ``ledger``. Raises StorageError, ChainError."""
    seed = ledger.genesis_seed if ledger is not None else os.urandom(SEED_BYTES)
    engine = LiteSvmEngine(
        unix_timestamp=unix_timestamp,
        genesis_seed=seed,
        programs=read_all_programs(),
        history_capacity=ENGINE_HISTORY,
    )
    return Bank(engine, ledger)


async def _run(
    bank: Bank,
    config: LocalnetConfig,
    rpc_listeners: list[trio.SocketListener],
    ws_listeners: list[trio.SocketListener],
    info: LocalnetInfo,
    on_ready: OnReady | None,
) -> None:
    http = HttpServer(lambda body: iter_answers(bank, body))
    websocket = WebSocketServer(Hub(bank))
    # what the ledger could not keep must not be acknowledged: a StorageError stops the node, and is told
    with _ungrouped(StorageError):
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, http.serve_connection, rpc_listeners)
            await nursery.start(trio.serve_listeners, websocket.serve_connection, ws_listeners)
            nursery.start_soon(_run_clock, bank, config.slot_seconds)
            if on_ready is not None:
                on_ready(info)


async def _run_clock(bank: Bank, slot_seconds: float) -> None:
    """A slot every ``slot_seconds``. Time lost while the process was stopped is not made up for."""
    deadline = trio.current_time() + slot_seconds
    while True:
        await trio.sleep_until(deadline)
        bank.advance(int(time.time()))
        deadline = max(deadline + slot_seconds, trio.current_time())


# ---- ports -------------------------------------------------------------------------------------------


async def _open_ports(
    config: LocalnetConfig,
) -> tuple[list[trio.SocketListener], list[trio.SocketListener]]:
    """Listeners for JSON-RPC and websocket. Raises NetworkError."""
    for attempt in range(MAX_PORT_TRIES):
        rpc = await _open_port(config.host, config.rpc_port)
        ws_port = config.ws_port if config.ws_port is not None else _get_port(rpc) + 1
        try:
            return rpc, await _open_port(config.host, ws_port)
        except NetworkError:
            for listener in rpc:
                await trio.aclose_forcefully(listener)
            # a free port whose neighbour is taken: look for another pair
            if config.rpc_port != 0 or config.ws_port is not None or attempt == MAX_PORT_TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def _open_port(host: str, port: int) -> list[trio.SocketListener]:
    if not 0 <= port <= 65535:
        raise NetworkError(f"{port} is no port number.", "Give 1 to 65535, or 0 for any free port.")
    try:
        return list(await trio.open_tcp_listeners(port, host=host))
    except OSError as error:
        code = error.errno or getattr(error.__cause__, "errno", None)
        if code == errno.EADDRINUSE:
            raise NetworkError(
                f"Port {port} on {host} is taken by another program.",
                "Stop it (is another localnet running?) or choose another with --rpc-port and --ws-port.",
            ) from error
        raise NetworkError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            "Give an address of this machine with --host, and a port you may use.",
        ) from error


def _get_port(listeners: list[trio.SocketListener]) -> int:
    port: int = listeners[0].socket.getsockname()[1]
    return port


def _format_address(host: str, listeners: list[trio.SocketListener]) -> str:
    return f"[{host}]:{_get_port(listeners)}" if ":" in host else f"{host}:{_get_port(listeners)}"
