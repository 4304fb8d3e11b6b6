"""``run-manager doctor``: whether this machine can take part in a run, and what to do about it if not."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import click
import trio

from psyche_py.cli.common import (
    ClusterOptions,
    cluster_options,
    make_backend,
    output_option,
    print_json,
    run_option,
)
from psyche_py.errors import NetworkError, PsycheError

if TYPE_CHECKING:
    from psyche_py.chain.port import ChainBackend
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.p2p.hint import Address

MAX_CALLED = 8
"""Peers that are asked to dial back, one after the other, until one can tell."""
EXIT_RELAY = 8


class Verdict(StrEnum):
    """How others reach this machine."""

    REACHABLE = "reachable"
    RELAY = "through relay"
    UNREACHABLE = "not reachable"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``exit_code`` 0: in order."""

    name: str
    found: str
    remedy: str = ""
    exit_code: int = 0


@click.command()
@run_option
@click.option(
    "--listen-host",
    "--bind-p2p-interface",
    metavar="ADDRESS",
    help="Where peers may dial [default: all addresses; 127.0.0.1 when the cluster is on this machine].",
)
@click.option("--listen-port", "--bind-p2p-port", type=click.IntRange(0, 65535), default=0)
@click.option("--announce", metavar="HOST:PORT", help="Where peers reach you, behind a router; or: none.")
@output_option
@cluster_options
def doctor(
    cluster: ClusterOptions,
    run_id: str,
    listen_host: str | None,
    listen_port: int,
    announce: str | None,
    output: str,
) -> int:
    """Find out whether this machine can take part in a run.

    Looks at the wallet, the cluster, the clock and the port, and has a client of the run dial back. Where
    that fails it finds out whether hole punching works through your router. Give it the same options as
    `join`; a client that is already running may go on. Ends with 0 when peers can dial you, with 8 when you
    take part through others, else with the exit code of what is wrong.

    \b
    Examples:
      run-manager doctor -r my-run -u devnet -k wallet.json --listen-port 4001
      run-manager doctor -r my-run --listen-port 4001 --announce 203.0.113.7:4001
      run-manager doctor -r my-run --output json
    """
    host = cluster.get_listen_host(listen_host)
    checks, verdict = trio.run(_examine, cluster, run_id, host, listen_port, announce)
    failed = [check.exit_code for check in checks if check.exit_code]
    code = next((code for code in failed if code != EXIT_RELAY), failed[0] if failed else 0)
    if output == "json":
        facts = {"checks": [asdict(check) for check in checks], "verdict": verdict.value, "exit_code": code}
        print_json(facts)
        return code
    for check in checks:
        click.echo(f"{'ok ' if not check.exit_code else '-- '} {check.name:<8} {check.found}")
        if check.remedy:
            click.echo(f"{'':12} {check.remedy}")
    click.echo(verdict.value)
    return code


async def _examine(
    cluster: ClusterOptions, run_id: str, host: str, port: int, announce: str | None
) -> tuple[list[Check], Verdict]:
    """All checks; one that fails does not keep the others from being made."""
    checks: list[Check] = []
    account = None
    async with make_backend(cluster) as backend:
        checks.append(await _check_wallet(cluster, backend))
        cluster_check, account = await _check_cluster(cluster, backend, run_id)
        checks.append(cluster_check)
        if account is not None:
            checks.append(await check_clock(backend, time.time))
    try:
        announced_port = _get_announced_port(port, announce, cluster)
        async with _listening(host, port) as (found, own_port):
            checks.append(Check("port", found))
            peers = _list_addresses(account) if account is not None else []
            check, verdict = await check_reachability(peers, announced_port or own_port, announce)
            checks.append(check)
            if verdict is Verdict.RELAY:
                checks.append(await check_punching(peers))
            return checks, verdict
    except NetworkError as error:
        checks.append(Check("port", error.what, error.remedy, error.exit_code))
        return checks, Verdict.UNKNOWN


async def _check_wallet(cluster: ClusterOptions, backend: ChainBackend) -> Check:
    try:
        wallet = cluster.load_wallet().pubkey()
        info = await backend.get_account(wallet)
    except PsycheError as error:
        return Check("wallet", error.what, error.remedy, error.exit_code)
    if info is None or not info.lamports:
        remedy = f"Send it some SOL; on a test cluster: run-manager wallet airdrop 1 (to {wallet})"
        return Check("wallet", f"{wallet} holds no SOL: it cannot pay for transactions.", remedy, 3)
    return Check("wallet", f"{wallet} holds {info.lamports} lamports.")


async def _check_cluster(
    cluster: ClusterOptions, backend: ChainBackend, run_id: str
) -> tuple[Check, CoordinatorAccount | None]:
    from solders.keypair import Keypair

    from psyche_py.chain.client import ProgramClient

    started = time.monotonic()
    try:
        run = await ProgramClient(backend, Keypair()).fetch_run(run_id)
    except PsycheError as error:
        return Check("cluster", error.what, error.remedy, error.exit_code), None
    milliseconds = 1e3 * (time.monotonic() - started)
    found = f"{cluster.get_cluster().moniker} answers; run {run_id} is {run.account.run_state.name}"
    return Check("cluster", f"{found} ({milliseconds:.0f} ms)."), run.account


async def check_clock(backend: ChainBackend, clock: Callable[[], float]) -> Check:
    """Compare ``clock`` (unix seconds of this machine) with the chain's, by the bounds that a client has.

    The chain counts whole seconds and may be a slot behind, so a second or two means nothing.
    """
    from psyche_py.client.clock import REFUSE_SECONDS, WARN_SECONDS, ClockError

    try:
        offset = clock() - (await backend.get_chain_time()).unix_timestamp
    except PsycheError as error:
        return Check("clock", error.what, error.remedy, error.exit_code)
    if abs(offset) <= WARN_SECONDS:
        return Check("clock", f"{offset:+.0f} s from the chain's.")
    found = f"This machine's clock is {offset:+.0f} s off the chain's."
    code = ClockError.exit_code if abs(offset) >= REFUSE_SECONDS else 0
    return Check("clock", found, "Let it be set by NTP: timedatectl set-ntp true", code)


def _get_announced_port(port: int, announce: str | None, cluster: ClusterOptions) -> int:
    """The port that others should dial, 0: the one we listen on. Raises HintError where `join` would."""
    from psyche_py.p2p.hint import EMPTY_HINT, unpack_hint
    from psyche_py.p2p.listening import make_own_hint

    if announce is None:
        return 0
    hint = make_own_hint("127.0.0.1", port or 1, announce, is_public=cluster.is_public())
    address = unpack_hint(hint) if hint != EMPTY_HINT else None
    return address.port if address is not None and (port or ":" in announce) else 0


def _list_addresses(account: CoordinatorAccount) -> list[Address]:
    """Where clients of the run that can be there can be dialed, in random order."""
    from psyche_py.p2p.errors import HintError
    from psyche_py.p2p.hint import unpack_hint

    found: list[Address] = []
    for entry in account.present:
        try:
            address = unpack_hint(entry.address_hint)
        except HintError:
            continue  # its owner's fault; nobody dials it
        if address is not None:
            found.append(address)
    random.shuffle(found)
    return found


@asynccontextmanager
async def _listening(host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Return tokens on the port, unless a client does that already. Raises PortTaken, ListenFailed."""
    from psyche_py.p2p.dial_back import is_answered, serve_tokens
    from psyche_py.p2p.errors import PortTaken
    from psyche_py.p2p.listening import check_port, resolve_listen_host

    ip = await resolve_listen_host(host)
    try:
        check_port(ip, port)
    except PortTaken:
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(ip, ip)
        if not await is_answered(own, port, random.randbytes(16)):
            raise
        yield f"A client of ours listens on {ip} port {port}.", port
        return
    async with serve_tokens(ip, port) as own_port:
        yield f"We can listen on {ip} port {own_port}.", own_port


async def check_reachability(
    peers: Sequence[Address], own_port: int, announce: str | None
) -> tuple[Check, Verdict]:
    """Ask ``peers`` one after the other to dial us at ``own_port``, until one can tell."""
    from psyche_py.p2p.dial_back import Answer, call
    from psyche_py.p2p.listening import ANNOUNCE_NONE

    reached, refused = 0, 0
    for peer in peers[:MAX_CALLED]:
        try:
            answer = await call(peer.host, peer.port, own_port)
        except NetworkError:
            continue  # many are behind routers, or have left
        reached += 1
        if answer is Answer.YES and announce != ANNOUNCE_NONE:
            return Check("reach", f"{peer} dialed us back."), Verdict.REACHABLE
        refused += answer is Answer.NO
        if refused == 2 or announce == ANNOUNCE_NONE:
            break
    if refused or (reached and announce == ANNOUNCE_NONE):
        return _describe_relay(own_port, announce), Verdict.RELAY
    if reached:
        return Check("reach", "The peers are busy.", "Try again in a minute.", 5), Verdict.UNKNOWN
    if not peers:
        found = "No client of the run can be dialed, so there is nobody to ask."
        remedy = "Ask again when a client with a public address has joined."
        return Check("reach", found, remedy, 5), Verdict.UNKNOWN
    found = f"None of {min(len(peers), MAX_CALLED)} clients of the run answers."
    remedy = "Let the firewall pass outgoing TCP connections to any port, or try another network."
    return Check("reach", found, remedy, 5), Verdict.UNREACHABLE


async def check_punching(peers: Sequence[Address]) -> Check:
    """Whether others behind routers can connect directly all the same. Nothing is wrong if they cannot."""
    from psyche_py.p2p.seen import PortRule, compare_ports

    rule = await compare_ports(peers[:MAX_CALLED], random.randbytes(16))
    directly = "other clients behind routers that do so too connect to you directly."
    found = {
        PortRule.SAME: f"Your router shows everybody the same port. Hole punching works: {directly}",
        PortRule.KEPT: f"Your router keeps the port of a connection. Hole punching should work: {directly}",
        PortRule.OTHER: "Your router gives every target another port. Hole punching does not work: other "
        "clients behind routers reach you through a relay.",
        PortRule.UNKNOWN: "Too few clients tell where they see you to know whether hole punching works.",
    }
    return Check("punch", found[rule])


def _describe_relay(own_port: int, announce: str | None) -> Check:
    found = f"Clients that we dial cannot dial port {own_port} back: what we say and have goes through them."
    remedy = (
        f"Forward TCP port {own_port} on your router to this machine and let the firewall pass it; if the "
        "port outside is another one, give it to --announce HOST:PORT"
    )
    if announce == "none":
        found, remedy = "You announce no address: what we say and have goes through others.", ""
    return Check("reach", found, remedy, EXIT_RELAY)
