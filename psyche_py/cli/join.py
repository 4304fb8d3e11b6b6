"""``run-manager join``: the client."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
import trio

from psyche_py.cli.common import ClusterOptions, cluster_options, make_backend, parse_pubkey, run_option
from psyche_py.cli.errors import find_cause
from psyche_py.client.options import ClientOptions
from psyche_py.errors import PsycheError, StorageError
from psyche_py.observe.events import Event, EventSink

if TYPE_CHECKING:
    from solders.keypair import Keypair


ROUNDS_SHOWN = 1024
"""The loss curve of the live view; a client runs for months."""


@click.command()
@run_option
@click.option(
    "--data", "data_dir", type=click.Path(path_type=Path), help="Token shards [default: what the run names]."
)
@click.option("--checkpoint-dir", type=click.Path(path_type=Path), help="Write checkpoints here.")
@click.option("--keep-checkpoints", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--events", "events_path", type=click.Path(path_type=Path), help="Append events here (JSON lines)."
)
@click.option("--logs", type=click.Choice(["console", "tui", "json"]), default="console", show_default=True)
@click.option(
    "--listen-host",
    "--bind-p2p-interface",
    metavar="ADDRESS",
    help="Where peers may dial [default: all addresses; 127.0.0.1 when the cluster is on this machine].",
)
@click.option("--listen-port", "--bind-p2p-port", type=click.IntRange(0, 65535), default=0)
@click.option("--announce", metavar="HOST:PORT", help="Where peers reach you, behind a router; or: none.")
@click.option(
    "--lan/--no-lan",
    help="Find peers in the local network by mDNS, and be found. [default: no-lan]",
)
@click.option("--micro-batch-size", type=click.IntRange(1), default=4, show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads of torch.")
@click.option("--authorizer", metavar="PUBKEY", help="The grantee that has made you its delegate.")
@click.option("--wait", is_flag=True, help="Wait for a run that is paused, instead of giving up.")
@cluster_options
def join(
    cluster: ClusterOptions,
    run_id: str,
    data_dir: Path | None,
    checkpoint_dir: Path | None,
    keep_checkpoints: int,
    events_path: Path | None,
    logs: str,
    listen_host: str | None,
    listen_port: int,
    announce: str | None,
    lan: bool,
    micro_batch_size: int,
    device: str,
    threads: int,
    authorizer: str | None,
    wait: bool,
) -> None:
    """Train in a run until it is finished.

    Ctrl-C once finishes the round and leaves, twice leaves at once. A client that starts in the middle of
    an epoch waits for the next one and takes the model from its peers.

    \b
    Examples:
      run-manager join -r my-run -k wallet.json
      run-manager join -r my-run -u devnet --checkpoint-dir checkpoints/ --logs tui
    """
    options = ClientOptions(
        run_id=run_id,
        data_dir=data_dir,
        checkpoint_dir=checkpoint_dir,
        keep_checkpoints=keep_checkpoints,
        listen_host=cluster.get_listen_host(listen_host),
        listen_port=listen_port,
        announce=announce,
        is_public=cluster.is_public(),
        lan=lan,
        micro_batch_size=micro_batch_size,
        device=device,
        num_threads=threads,
        authorizer=parse_pubkey(authorizer, "--authorizer") if authorizer else None,
        wait=wait,
    )
    wallet = cluster.load_wallet()
    if options.listen_host.startswith("127.") and announce is None and not cluster.get_cluster().is_local:
        click.echo(
            "note: other machines cannot dial 127.0.0.1: see --listen-host, --announce, run-manager doctor",
            err=True,
        )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_events(events_path)) if events_path is not None else None
        listener = stack.enter_context(_make_listener(logs, run_id))
        sink = EventSink(file, time.time, listener)
        try:
            trio.run(_main, cluster, options, wallet, sink)
        except BaseException as error:
            cause = find_cause(error)
            code = _get_exit_code(cause)
            sink.emit("error", message=str(cause) or type(cause).__name__, exit_code=code)
            raise


async def _main(cluster: ClusterOptions, options: ClientOptions, wallet: Keypair, sink: EventSink) -> None:
    from psyche_py.client.runtime import run_client

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, stop, nursery.cancel_scope)
        async with make_backend(cluster) as backend:
            await run_client(options, wallet, backend, sink, stop)
        nursery.cancel_scope.cancel()
        return
    raise click.Abort  # by the second signal


async def _watch_signals(stop: trio.Event, scope: trio.CancelScope) -> None:
    """The first SIGINT or SIGTERM asks the client to leave, the second makes it."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
            stop.set()


def _get_exit_code(cause: BaseException) -> int:
    if isinstance(cause, PsycheError):
        return cause.exit_code
    return 130 if isinstance(cause, KeyboardInterrupt | click.Abort) else 1


def _open_events(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write events to {path}: {error.strerror}.", "Choose another.") from None


@contextlib.contextmanager
def _make_listener(logs: str, run_id: str):  # type: ignore[no-untyped-def]
    """What is done with each event besides writing it down."""
    from psyche_py.observe.tally import ClientTally
    from psyche_py.observe.view import RunView, format_event

    if logs == "json":
        import json

        yield lambda event: click.echo(json.dumps(event, default=str))
    elif logs == "tui":
        tally = ClientTally(run_id, max_kept=ROUNDS_SHOWN)
        with RunView(f"psyche-py  {run_id}") as view:

            def show(event: Event) -> None:
                tally.add(event)
                view.show([tally])

            yield show
    else:

        def log(event: Event) -> None:
            line = format_event(event)
            if line is not None:
                click.echo(f"{time.strftime('%H:%M:%S', time.localtime(event['t']))}  {line}")

        yield log
