"""ChainBackend on a cluster, over JSON-RPC."""

from __future__ import annotations

import itertools
import random as random_module
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Self

import httpx
import trio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.clusters import Cluster, derive_websocket_url
from psyche_py.chain.decode_error import to_exception
from psyche_py.chain.errors import (
    AirdropRefused,
    RpcRefused,
    RpcUnavailable,
    TransactionExpired,
)
from psyche_py.chain.port import (
    MAX_COMPUTE_UNITS,
    AccountInfo,
    ChainTime,
    Memcmp,
    TransactionResult,
)
from psyche_py.chain.rpc.calls import COMMITMENTS, RpcCalls
from psyche_py.chain.rpc.endpoint import Endpoint
from psyche_py.chain.rpc.pool import Notices, RpcPool
from psyche_py.chain.rpc.sender import CLUSTER_POLICY, LOCAL_POLICY, Sender, SendPolicy
from psyche_py.chain.rpc.subscription import AccountWatch, WatchPolicy, watch
from psyche_py.chain.transaction import add_budget, sign

CLOCK_SYSVAR = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
DEFAULT_COMPUTE_UNITS = 400_000
"""Three times what our dearest instruction takes (end of an epoch with 256 clients: 119,000)."""

UNIT_SPREAD = 4096
AIRDROP_SECONDS = 45.0
CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """How patient to be with a cluster. ``unit_margin`` is added to the compute units a simulation took."""

    send: SendPolicy
    watch: WatchPolicy
    max_blockhash_age_seconds: float
    unit_margin: float = 0.2
    attempt_seconds: float = 5.0
    deadline_seconds: float = 15.0


LOCAL_OPTIONS = RpcOptions(LOCAL_POLICY, WatchPolicy(poll_seconds=2.0), max_blockhash_age_seconds=1.0)
CLUSTER_OPTIONS = RpcOptions(CLUSTER_POLICY, WatchPolicy(), max_blockhash_age_seconds=10.0)


class RpcBackend:
    """See the module; use it in ``async with``, which closes its connections.

    With a priority fee each transaction is simulated first, so as to pay for the compute units it needs and
    no more; without one, a fixed number is asked for, which costs nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        priority_fee_micro_lamports: int = 0,
        options: RpcOptions | None = None,
        tell: Callable[[str], None] | None = None,
        random: Callable[[], float] = random_module.random,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``cluster`` names the endpoints in order of preference.

        ``priority_fee_micro_lamports`` is the price per compute unit. ``tell`` hears of endpoints that fail
        (the log does otherwise). ``options`` and ``transport`` are for tests.
        """
        self._options = options or (LOCAL_OPTIONS if cluster.is_local else CLUSTER_OPTIONS)
        self._price = priority_fee_micro_lamports
        self._websocket_urls = [
            cluster.websocket_url,
            *(derive_websocket_url(url) for url in cluster.http_urls[1:]),
        ]
        self._random = random
        self._notices = Notices(tell)
        commitment = cluster.commitment
        self._level = COMMITMENTS.index(commitment)
        seconds = self._options.attempt_seconds
        pool = RpcPool(
            [Endpoint(url, commitment, seconds, transport) for url in cluster.http_urls],
            notices=self._notices,
            random=random,
            attempt_seconds=seconds,
            deadline_seconds=self._options.deadline_seconds,
        )
        self._calls = RpcCalls(pool, commitment)
        self._blockhash: tuple[Hash, int, float] | None = None  # hash, last valid height, when fetched
        # equal instructions must differ in something, or the second would be taken for the first
        self._spread = itertools.count(int(random() * UNIT_SPREAD))

    # ---- reading ------------------------------------------------------------------------------------

    async def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """See ChainBackend."""
        return await self._calls.get_account(pubkey)

    async def get_multiple_accounts(self, pubkeys: Sequence[Pubkey]) -> list[AccountInfo | None]:
        """See ChainBackend; more than 100 accounts may be of different slots."""
        return await self._calls.get_multiple_accounts(pubkeys)

    async def get_program_accounts(
        self, program_id: Pubkey, *, data_size: int | None = None, memcmp: Sequence[Memcmp] = ()
    ) -> list[AccountInfo]:
        """See ChainBackend."""
        return await self._calls.get_program_accounts(program_id, data_size, memcmp)

    async def get_chain_time(self) -> ChainTime:
        """See ChainBackend; read from the Clock sysvar, as programs do."""
        info = await self._calls.get_account(CLOCK_SYSVAR)
        if info is None or len(info.data) < 40:
            raise RpcRefused("The cluster has no Clock sysvar.", "Check that the URL is of a Solana cluster.")
        return ChainTime(
            slot=int.from_bytes(info.data[0:8], "little"),
            unix_timestamp=int.from_bytes(info.data[32:40], "little", signed=True),
        )

    async def get_minimum_balance(self, num_bytes: int) -> int:
        """See ChainBackend."""
        return await self._calls.get_minimum_balance(num_bytes)

    def subscribe_account(
        self, pubkey: Pubkey
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[AccountInfo]]:
        """See ChainBackend. The channel ends when the account is closed."""
        return watch(
            AccountWatch(
                self._calls,
                self._websocket_urls,
                pubkey,
                self._options.watch,
                self._notices,
                self._random(),
            )
        )

    # ---- writing ------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """See ChainBackend: a blockhash that is young enough for some time yet."""
        await self._get_blockhash(self._options.max_blockhash_age_seconds / 2)

    async def send(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], *, label: str = ""
    ) -> TransactionResult:
        """See ChainBackend. Returns when the transaction has reached our commitment."""
        spread = next(self._spread) % UNIT_SPREAD
        units = DEFAULT_COMPUTE_UNITS - spread
        if self._price:
            units = await self._estimate_units(instructions, signers, label) + spread
        budgeted = add_budget(
            instructions, compute_units=min(units, MAX_COMPUTE_UNITS), micro_lamports_per_unit=self._price
        )
        blockhash, last_valid_block_height = await self._get_blockhash()
        transaction = sign(budgeted, signers, blockhash, label=label)
        sender = Sender(
            self._calls, self._options.send, transaction, budgeted, last_valid_block_height, label
        )
        try:
            status = await sender.run()
        except TransactionExpired:
            self._blockhash = None
            raise
        return TransactionResult(transaction.signatures[0], status.slot, None, ())

    async def _estimate_units(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair], label: str
    ) -> int:
        """Compute units that the transaction needs, with a margin. Raises what sending it would."""
        budgeted = add_budget(instructions, micro_lamports_per_unit=self._price)
        blockhash, _ = await self._get_blockhash()
        simulation = await self._calls.simulate(sign(budgeted, signers, blockhash, label=label))
        if simulation.err is not None:
            payer = str(signers[0].pubkey())
            raise to_exception(simulation.err, simulation.logs, budgeted, label=label, payer=payer)
        return int(simulation.compute_units * (1 + self._options.unit_margin)) + UNIT_SPREAD

    async def _get_blockhash(self, max_age_seconds: float | None = None) -> tuple[Hash, int]:
        """What we know, or a new one where that is older than this (default: than transactions may name)."""
        now = trio.current_time()
        limit = self._options.max_blockhash_age_seconds if max_age_seconds is None else max_age_seconds
        if self._blockhash is None or now - self._blockhash[2] > limit:
            self._blockhash = (*await self._calls.get_latest_blockhash(), now)
        return self._blockhash[:2]

    async def request_airdrop(self, pubkey: Pubkey, lamports: int) -> None:
        """See ChainBackend."""
        remedy = (
            "Devnet gives little, and not often: use its web faucet, or ask for less. A local network "
            "(run-manager localnet) gives as much as you like."
        )
        try:
            signature = await self._calls.request_airdrop(pubkey, lamports, deadline_seconds=10.0)
            with trio.fail_after(AIRDROP_SECONDS):
                poll = self._options.send.first_poll_seconds
                while True:
                    status = await self._calls.get_signature_status(signature)
                    if status is not None and status.level >= self._level:
                        break
                    await trio.sleep(poll)
                    poll = min(poll * 1.5, self._options.send.max_poll_seconds)
        except (RpcRefused, RpcUnavailable) as error:
            raise AirdropRefused(f"The cluster gives no test money: {error.what}", remedy) from error
        except trio.TooSlowError:
            raise AirdropRefused(f"The airdrop did not arrive in {AIRDROP_SECONDS:g} s.", remedy) from None
        if status.err is not None:
            raise AirdropRefused(f"The airdrop failed: {status.err}.", remedy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
            await self._calls.pool.aclose()
