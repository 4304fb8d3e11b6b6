"""A bank that is the real programs in LiteSVM: slower than the rule book, and the last word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.client import ProgramClient, RunHandle
from psyche_py.chain.errors import ProgramError
from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.chain.pda import find_instance
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.config import CoordinatorConfig, Metadata, RunConfig
from psyche_py.coordinator.layout import ACCOUNT_SIZE, CheckpointKind
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.sim.bank import CLIENT_VERSION, RUN_ID, Process

LAMPORTS = 10**12
OWNER, ACCOUNT = b"owner".ljust(32), b"run account".ljust(32)
"""Seeds of two key pairs: with drawn ones every run would be another."""

Call = Callable[[ProgramClient, RunHandle, dict[str, Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Saved:
    engine: bytes
    account: CoordinatorAccount


class ProgramBank:
    """See ``bank.Bank``. Every instruction is a signed transaction in a slot of its own."""

    def __init__(self, now: int) -> None:
        self._backend = LiteSvmBackend.create(unix_timestamp=now)
        self._keypairs: dict[bytes, Keypair] = {}
        self._clients: dict[bytes, ProgramClient] = {}
        self._owner = ProgramClient(self._backend, self._keypairs[self.make_signer(OWNER)])
        self._run: RunHandle
        self.account: CoordinatorAccount

    def make_signer(self, seed: bytes) -> bytes:
        """See Bank. The wallet has lamports for its fees."""
        keypair = Keypair.from_seed(seed)
        key = bytes(keypair.pubkey())
        if key not in self._keypairs:
            self._keypairs[key] = keypair
            self._backend.engine.airdrop(keypair.pubkey(), LAMPORTS)
        return key

    def start(self, config: RunConfig, rates: dict[str, int], now: int) -> None:
        """See Bank."""
        trio.run(self._start, config, rates)

    async def _start(self, config: RunConfig, rates: dict[str, int]) -> None:
        owner = self._owner
        payer, account = owner.payer.pubkey(), Keypair.from_seed(ACCOUNT)
        accounts = {
            "payer": payer,
            "coordinator_account": account.pubkey(),
            "instance": find_instance(RUN_ID),
            "system_program": Pubkey.default(),
        }
        args = {
            "main_authority": payer,
            "join_authority": payer,
            "run_id": RUN_ID,
            "client_version": CLIENT_VERSION,
        }
        rent = await self._backend.get_minimum_balance(ACCOUNT_SIZE)
        program_id = get_program_id("coordinator")
        place = CreateAccountParams(
            from_pubkey=payer, to_pubkey=account.pubkey(), lamports=rent, space=ACCOUNT_SIZE, owner=program_id
        )
        init = get_program("coordinator").encode("init_coordinator", accounts, args)
        await self._backend.send([create_account(place), init], [owner.payer, account])
        await owner.authorization_create()
        self._run = await owner.fetch_run(RUN_ID)
        await owner.update_run(
            self._run,
            config=config.config,
            model=config.model,
            earning_rate_total_shared=rates["earning_rate_total_shared"],
            slashing_rate_per_client=rates["slashing_rate_per_client"],
        )
        await owner.set_paused(self._run, False)
        self._read()

    def execute(self, process: Process, arguments: dict[str, Any], now: int, slot: int) -> str | None:
        """See Bank."""
        client = self._get_client(arguments.get("signer"))
        if process is rules.process_join:
            arguments = {**arguments, "p2p_key": self._keypairs[arguments["p2p_key"]]}
        self._backend.set_time(now)

        async def send() -> str | None:
            try:
                await _CALLS[process](client, self._run, arguments)
            except ProgramError as error:
                return error.name
            return None

        error = trio.run(send)
        if error is None:
            self._read()
        return error

    def save(self) -> _Saved:
        """See Bank."""
        return _Saved(self._backend.engine.snapshot(), self.account)

    def restore(self, saved: _Saved) -> None:
        """See Bank."""
        self._backend.engine.restore(saved.engine)
        self.account = saved.account

    def _get_client(self, signer: bytes | None) -> ProgramClient:
        if signer is None:
            return self._owner
        if signer not in self._clients:
            self._clients[signer] = ProgramClient(self._backend, self._keypairs[signer])
        return self._clients[signer]

    def _read(self) -> None:
        info = self._backend.engine.get_account(self._run.coordinator_account)
        assert info is not None, "nobody closes a simulated run"
        account = CoordinatorAccount.from_bytes(info.data)
        if not hasattr(self, "account") or account.nonce != self.account.nonce:
            self.account = account


def _leave_signer_out(args: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in args.items() if key != "signer"}


def _attest(client: ProgramClient, run: RunHandle, args: dict[str, Any]) -> Awaitable[object]:
    attested = _leave_signer_out(args)
    return client.witness(
        run, **attested, tokens_per_second=0.0, bandwidth_per_second=0.0, loss=0.0, efficiency=0.0
    )


def _post(client: ProgramClient, run: RunHandle, args: dict[str, Any]) -> Awaitable[object]:
    repo = args["repo"].rstrip(b"\0").decode()
    return client.checkpoint(run, kind=CheckpointKind(args["kind"]), repo=repo)


def _update(client: ProgramClient, run: RunHandle, args: dict[str, Any]) -> Awaitable[object]:
    config, metadata = args.get("config"), args.get("metadata")
    return client.update_run(
        run,
        config=None if config is None else CoordinatorConfig.from_bytes(config),
        metadata=None if metadata is None else Metadata.from_bytes(metadata),
    )


_CALLS: dict[Process, Call] = {
    rules.process_join: lambda c, run, a: c.join_run(
        run, p2p_key=a["p2p_key"], address_hint=a["address_hint"]
    ),
    rules.process_announce: lambda c, run, a: c.announce(run, address_hint=a["address_hint"]),
    rules.process_leave: lambda c, run, a: c.leave_run(run),
    rules.process_tick: lambda c, run, a: c.tick(run),
    rules.process_warmup_witness: lambda c, run, a: c.warmup_witness(run, index=a["index"]),
    rules.process_health_check: lambda c, run, a: c.health_check(run, index=a["index"]),
    rules.process_witness: _attest,
    rules.process_verdict: lambda c, run, a: c.verdict(run, **_leave_signer_out(a)),
    rules.process_vote: lambda c, run, a: c.vote(run, **_leave_signer_out(a)),
    rules.process_checkpoint: _post,
    rules.process_set_paused: lambda c, run, a: c.set_paused(run, a["paused"]),
    rules.process_update: _update,
    rules.process_set_future_epoch_rates: lambda c, run, a: c.update_run(run, **a),
}
