"""The client at work: one trio program that feeds the machine and performs what it asks.

Tasks: the account subscription, the mesh's announcements, a timer, the trainer's jobs (in a worker thread,
one at a time), and one short task per transaction or fetch. Every wait on the network has a deadline.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from psyche_py.chain.errors import InsufficientFunds, ProgramError
from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.admission import check_run
from psyche_py.client.announcements import make_examiner
from psyche_py.client.clock import ChainClock
from psyche_py.client.evidence_desk import EvidenceDesk
from psyche_py.client.exchange import Exchange
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.machine import ClientMachine
from psyche_py.client.options import ClientOptions
from psyche_py.client.session import Identity
from psyche_py.client.sharing import ModelExchange, wants_model
from psyche_py.client.threads import in_thread
from psyche_py.client.transactions import (
    HARMLESS,
    REFUSED_RETRY_SECONDS,
    ClientStats,
    Transactions,
    get_key,
    is_tried_again,
)
from psyche_py.coordinator.layout import SHARED_KINDS
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.errors import ChainError, PsycheError, RunStateError

if TYPE_CHECKING:
    from solders.keypair import Keypair

    from psyche_py.chain.client import ProgramClient
    from psyche_py.chain.port import ChainBackend
    from psyche_py.chain.runs import RunHandle
    from psyche_py.model.sharing import ModelSnapshot
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

T = TypeVar("T")

TIMER_SECONDS = 0.2


async def run_client(
    options: ClientOptions,
    wallet: Keypair,
    backend: ChainBackend,
    sink: EventSink,
    stop: trio.Event,
) -> None:
    """Take part in a run until it is finished or ``stop`` is set (then the round is finished first).

    Raises PsycheError with the remedy otherwise: RunStateError, VersionMismatch, ChainError, NetworkError,
    DataError, ReplicaError, StorageError.
    """
    from solders.keypair import Keypair

    from psyche_py.chain.client import ProgramClient
    from psyche_py.p2p.identity import derive_p2p_seed
    from psyche_py.p2p.libp2p_adapter import open_libp2p_network

    # a thread that computes must not hold the interpreter for longer than the mesh can wait
    sys.setswitchinterval(0.001)
    chain = ProgramClient(backend, wallet)
    run = await chain.fetch_run(options.run_id)
    check_run(run.account, options, bytes(wallet.pubkey()))
    await chain.check_authorization(run, options.authorizer)
    await chain.check_bond(run)
    seed = derive_p2p_seed(bytes(wallet)[:32], options.run_id)
    async with open_libp2p_network(
        seed,
        listen_host=options.listen_host,
        listen_port=options.listen_port,
        announce=options.announce,
        is_public=options.is_public,
        lan=options.lan,
    ) as network:
        runtime = ClientRuntime(options, chain, run, network, Keypair.from_seed(seed), sink)
        await runtime.run(stop)


class ClientRuntime:
    """Performs the machine's actions; see the module."""

    def __init__(
        self,
        options: ClientOptions,
        chain: ProgramClient,
        run: RunHandle,
        network: Network,
        p2p_key: Keypair,
        sink: EventSink,
        clock: Callable[[], float] = time.time,
        make_jobs: Callable[[ClientOptions], TrainerJobs] = TrainerJobs,
    ) -> None:
        self._options = options
        self._chain = chain
        self._run = run
        self._network = network
        self._sink = sink
        self._chain_clock = ChainClock(chain.backend, sink, clock)
        self._machine = ClientMachine(
            Identity(
                signer=bytes(chain.payer.pubkey()),
                p2p_key=network.key,
                program_id=bytes(chain.coordinator_program_id),
                run_id=options.run_id.encode().ljust(32, b"\0"),
                address_hint=network.hint,
            )
        )
        self._jobs = make_jobs(options)
        self._exchange = ModelExchange(network, sink, self._jobs, options)
        self._stats = ClientStats(network, trio.current_time)
        self._transactions = Transactions(chain, run, network, p2p_key, options, sink, self._stats)
        self._nursery: trio.Nursery | None = None
        self._prepared = trio.Event()
        self._outcome: PsycheError | None = None
        self._lost: list[tuple[int, int]] = []  # samples of the epochs we took part in that nobody trained
        parts = network, self._machine, self._jobs, sink, self._feed
        self._payloads, self._desk = Exchange(*parts), EvidenceDesk(*parts)
        network.set_examiner(make_examiner(self._machine.identity, lambda: self._machine.account))

    async def run(self, stop: trio.Event) -> None:
        """Run until the machine stops. Raises what went wrong."""
        await self._chain_clock.check()
        self._jobs.open_data(self._run.account)
        self._jobs.prepare_checkpoint_dir()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._spawn(self._prepare)
            nursery.start_soon(self._watch_account)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._report)
            nursery.start_soon(self._await_stop, stop)
        if self._outcome is not None:
            raise self._outcome

    # ---- inputs -------------------------------------------------------------------------------------

    def _feed(self, event: act.Input) -> None:
        for action in self._machine.handle(event):
            self._perform(action)

    async def _watch_account(self) -> None:
        async with self._chain.backend.subscribe_account(self._run.coordinator_account) as updates:
            async for info in updates:
                account = CoordinatorAccount.from_bytes(info.data)
                self._exchange.see(account)
                self._feed(act.AccountChanged(account, info.slot))

    async def _listen(self) -> None:
        async for heard in self._network.announcements():
            self._feed(act.Heard(heard.sender_key, heard.body, heard.signature))

    async def _keep_time(self) -> None:
        """Feed the chain's time."""
        while True:
            await self._chain_clock.keep()
            self._feed(act.TimePassed(self._chain_clock.now()))
            await trio.sleep(TIMER_SECONDS)

    async def _report(self) -> None:
        while True:
            network = self._network
            known = len(self._machine.account.present) - 1 if self._machine.account else 0
            self._sink.emit(
                "peers",
                connected=network.num_connected,
                known=max(known, 0),
                ways=dict(network.ways),
                punches=dict(network.stats.punches),
                offences=dict(network.stats.offences),
            )
            self._sink.emit("bytes", sent=network.bytes_sent, received=network.bytes_received)
            await trio.sleep(5)

    async def _await_stop(self, stop: trio.Event) -> None:
        try:
            await stop.wait()
            self._feed(act.LeaveAsked())
            await trio.sleep_forever()
        finally:
            # whatever ends the client: a thread that trains is waited for, so that it must not take long
            self._jobs.cancel_training()

    # ---- actions ------------------------------------------------------------------------------------

    def _perform(self, action: act.Action) -> None:
        network = self._network
        match action:
            case act.Emit(kind, fields):
                self._sink.emit(kind, **fields)
            case act.SetPeers(peers, seed):
                from psyche_py.p2p.port import PeerInfo

                network.set_peers([PeerInfo(key, hint) for key, hint in peers], seed)
            case act.Publish(body):
                self._spawn(network.publish, body)
            case act.ReportPeer(peer, kind):
                network.report(peer, kind)
            case act.FetchPayload():
                self._spawn(self._payloads.fetch_payload, action)
            case act.AskOpening():
                self._spawn(self._payloads.ask_opening, action)
            case act.DropPayloads(digests):
                for digest in digests:
                    network.store.drop(digest)
            case act.LoadModel():
                self._spawn(self._load_model, action)
            case act.CancelTraining():
                self._jobs.cancel_training()
            case act.Train():
                self._jobs.allow_training()
                self._spawn(self._train, action)
            case act.StartEpoch() | act.PrepareApply() | act.Apply() | act.SaveEpoch():
                self._spawn(self._do_job, action)
            case ver.PrepareReveal() | ver.Check() | ver.Judge():
                self._jobs.allow_training()
                self._spawn(self._desk.do_job, action)
            case ver.AskReveal():
                self._spawn(self._desk.ask_reveal, action)
            case ver.ShareEvidence():
                self._spawn(self._desk.share, action)
            case ver.FetchEvidence():
                self._spawn(self._desk.fetch, action)
            case act.PrepareTransaction():
                self._spawn(self._prepare_transaction)
            case act.Resync(reason):
                self._sink.emit("warning", message=f"resync: {reason}")
                self._jobs.cancel_training()
                self._start_sending("leave", act.SendLeave())
            case act.ReportLost(epoch, samples):
                self._report_lost(epoch, samples)
            case act.Stop():
                self._spawn(self._finish, action)
            case _:
                self._start_sending(get_key(action), action)

    def _start_sending(self, key: str, action: act.Action) -> None:
        # counted here and not in the task: trio may begin the task of a Stop before this one
        self._sending += 1
        self._spawn(self._send, key, action)

    def _spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._guard, function, *args)

    async def _guard(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """An error that the machine cannot deal with ends the client, with its cause kept."""
        try:
            await function(*args)
        except PsycheError as error:
            self._outcome = self._outcome or error
            assert self._nursery is not None
            self._nursery.cancel_scope.cancel()

    async def _finish(self, stop: act.Stop) -> None:
        reason = stop.reason
        with trio.move_on_after(10):
            while self._sending:
                await trio.sleep(0.05)
        if reason == "ejected":
            raise RunStateError(
                "The run's tie-breakers found against this client and ejected it; see the last event.",
                "If its work was honest, compare --device and library versions with other clients. To take "
                "part in the next epoch, join again: run-manager join",
            )
        if stop.unsaved is not None and self._options.checkpoint_dir is not None:
            # when all leave at once nobody else keeps what they have trained
            epoch, step = stop.unsaved
            await self._save_checkpoint(await in_thread(self._jobs.export), step, epoch)
        lost = [list(batch) for batch in self._lost]
        self._sink.emit("left" if reason != "finished" else "finished", reason=reason, lost=lost)
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    _sending = 0

    async def _send(self, key: str, action: act.Action) -> None:
        try:
            await self._transactions.send(action)
        except ProgramError as error:
            if error.name not in HARMLESS:
                self._sink.emit("warning", message=f"{key}: {error}")
            if error.name in ("NotAuthorized", "BondMissing", "ClientsFull"):
                raise RunStateError(f"Cannot join: {error.what}", error.remedy) from error
            if is_tried_again(key, error.name):
                await trio.sleep(REFUSED_RETRY_SECONDS)
                self._feed(act.SendFailed(key))
        except InsufficientFunds:
            raise  # waiting does not fill a wallet
        except ChainError as error:
            # the cluster is slow or away; the round stretches and we try again
            self._sink.emit("warning", message=f"{key}: {error}")
            await trio.sleep(1)
            self._feed(act.SendFailed(key))
        finally:
            self._sending -= 1

    async def _prepare_transaction(self) -> None:
        try:
            await self._chain.backend.prepare()
        except ChainError as error:
            # nothing is lost: sending asks again, and says what follows if the cluster stays away
            self._sink.emit("warning", message=f"preparing a transaction: {error}")

    # ---- the trainer --------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        for step in self._jobs.get_preparations(self._run.account):
            await in_thread(step)
        self._prepared.set()

    async def _load_model(self, action: act.LoadModel) -> None:
        asked = self._machine.account
        assert asked is not None
        started = trio.current_time()
        await self._prepared.wait()  # two threads that import the same libraries would see halves of them
        account = self._machine.account
        assert account is not None
        if not wants_model(account, asked.start_timestamp):
            # nothing would call off a load that begins when the epoch is over
            self._machine.busy = ""
            return
        peers = 0
        if account.model.checkpoint_kind in SHARED_KINDS:
            loaded = await self._exchange.load(action.from_peers, account)
            if loaded is None:
                self._machine.busy = ""
                return
            digest, source, peers = loaded.digest, loaded.source, loaded.num_peers
        else:
            source = account.model.checkpoint_kind.name
            digest = await in_thread(self._jobs.load_from_config, account)
        seconds = trio.current_time() - started
        self._sink.emit("model_loaded", source=source, seconds=seconds, digest=digest.hex(), peers=peers)
        self._feed(act.ModelLoaded(digest))

    async def _do_job(self, action: act.Action) -> None:
        match action:
            case act.StartEpoch(start_step, is_cold):
                account = self._machine.account
                assert account is not None
                self._desk.start_epoch()
                self._jobs.set_verification(account.config)
                self._jobs.start_epoch(start_step, is_cold)
            case act.PrepareApply(digests):
                found = [self._network.store.get(digest) for digest in digests]
                await in_thread(self._jobs.prepare_apply, [one for one in found if one is not None])
                self._feed(act.ApplyPrepared())
            case act.Apply(height, step, digests, trained, untrained):
                payloads = [self._network.store.get(digest) for digest in digests]
                held = [payload for payload in payloads if payload is not None]
                assert len(held) == len(digests), "the machine applies only what the store holds"
                self._exchange.stop_live_share()
                report = await in_thread(self._jobs.apply, held, step, height)
                self._sink.emit(
                    "apply",
                    height=height,
                    step=step,
                    num_payloads=len(held),
                    digest=report.digest.hex(),
                    trained=[list(batch) for batch in trained],
                    untrained=[list(batch) for batch in untrained],
                    seconds=report.seconds,
                )
                self._feed(act.Applied(height, report.digest))
            case act.SaveEpoch():
                await self._save_epoch(action)

    async def _train(self, action: act.Train) -> None:
        self._exchange.stop_live_share()
        # what was given up since is merely not foreseen
        found = {index: self._network.store.get(digest) for index, digest in action.foreseen}
        received = {index: payload for index, payload in found.items() if payload is not None}
        ranges = ((action.batch_start, action.batch_end), *action.repeats)
        trained = await in_thread(
            self._jobs.train, action.height, ranges, action.step, received, action.index
        )
        if trained is None:
            self._sink.emit("warning", message=f"round {action.height} passed before training was done")
            self._feed(act.Trained(action.height, None, 0, 0.0, 0.0))
            return
        result, commitment = trained
        self._network.store.put_checked(commitment.payload_hash, result.payload)
        self._sink.emit(
            "train",
            step=action.step,
            height=action.height,
            loss=result.loss,
            tokens=result.num_tokens,
            seconds=result.seconds,
            batch_start=action.batch_start,
            batch_end=action.batch_end,
            repeats=[list(batch) for batch in action.repeats],
        )
        self._stats.train_seconds += result.seconds
        speed = result.num_tokens / max(result.seconds, 1e-9)
        self._feed(act.Trained(action.height, commitment, len(result.payload), result.loss, speed))

    async def _save_epoch(self, action: act.SaveEpoch) -> None:
        snapshot = await in_thread(self._jobs.export)
        self._exchange.offer(action.epoch + 1, snapshot)
        self._sink.emit("digest", epoch=action.epoch, step=action.step, digest=snapshot.digest.hex())
        if action.lost:
            self._report_lost(action.epoch, action.lost)
        path: Path | None = None
        if self._options.checkpoint_dir is not None:
            path = await self._save_checkpoint(snapshot, action.step, action.epoch)
        self._feed(act.EpochSaved(str(path) if path is not None else None))
        if path is not None and action.post_location:
            await self._post_checkpoint(path)

    def _report_lost(self, epoch: int, samples: Sequence[tuple[int, int]]) -> None:
        self._lost += samples
        self._sink.emit("lost", epoch=epoch, samples=[list(batch) for batch in samples])

    async def _save_checkpoint(self, snapshot: ModelSnapshot, step: int, epoch: int) -> Path:
        path = await in_thread(self._jobs.save_checkpoint, snapshot, step, epoch)
        self._sink.emit("checkpoint", path=str(path), step=step)
        return path

    async def _post_checkpoint(self, path: Path) -> None:
        """Tell the run where the checkpoint is, so that it can go on when all clients are gone.

        Only for runs that live in one file system (their model came from a directory or a local config).
        """
        account = self._machine.account
        if account is None or account.model.checkpoint_origin.name not in ("Local", "Config"):
            return
        try:
            await self._chain.checkpoint(self._run, kind="Local", repo=str(path.resolve()), revision="")
        except ChainError as error:
            self._sink.emit("warning", message=f"checkpoint location not posted: {error}")
