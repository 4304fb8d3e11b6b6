"""Watching an account: a websocket that tells at once, and slow polling that never misses.

The websocket is an accelerator and polling is the truth. Whenever a subscription begins, the account is read
over HTTP, so that what happened before is not lost; while there is none, polling is quicker. States arrive
from both sides in any order; ``LatestAccount`` lets only newer ones through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import trio
from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig
from solders.rpc.requests import AccountSubscribe
from solders.rpc.responses import AccountNotification, SubscriptionResult, parse_websocket_message
from trio_websocket import ConnectionClosed, HandshakeError

from psyche_py.chain.errors import AccountNotFound, RpcUnavailable
from psyche_py.chain.latest import LatestAccount
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.rpc.calls import RpcCalls, to_account_info
from psyche_py.chain.rpc.policy import compute_backoff
from psyche_py.chain.rpc.pool import Notices
from psyche_py.chain.rpc.websocket import open_websocket

_LEVELS = {
    "processed": CommitmentLevel.Processed,
    "confirmed": CommitmentLevel.Confirmed,
    "finalized": CommitmentLevel.Finalized,
}
_LOST = (ConnectionClosed, HandshakeError, OSError, trio.TooSlowError, trio.BrokenResourceError)


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """Seconds between polls with and without a websocket, of silence before a ping, and of patience."""

    poll_seconds: float = 4.0
    lonely_poll_seconds: float = 1.0
    ping_seconds: float = 10.0
    answer_seconds: float = 10.0


class SubscriptionLost(Exception):
    """The websocket answered something that is no subscription."""


class AccountWatch:
    """The two tasks behind one ``subscribe_account``."""

    def __init__(
        self,
        calls: RpcCalls,
        websocket_urls: Sequence[str],
        pubkey: Pubkey,
        policy: WatchPolicy,
        notices: Notices,
        jitter: float,
    ) -> None:
        self._calls = calls
        self._urls = list(websocket_urls)
        self._pubkey = pubkey
        self._policy = policy
        self._notices = notices
        self._jitter = jitter
        self._is_subscribed = False
        self._wake = trio.Event()
        self.latest = LatestAccount()

    async def start(self) -> None:
        """Read the account for the first time. Raises AccountNotFound, RpcUnavailable."""
        info = await self._calls.get_account(self._pubkey)
        if info is None:
            raise AccountNotFound(
                f"There is no account {self._pubkey} on this cluster.",
                "Check the address and the cluster (-u).",
                pubkey=str(self._pubkey),
            )
        self.latest.offer(info, is_pushed=False)

    # ---- polling ------------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Read the account now and then, and whenever a subscription began. Ends when the account is gone."""
        while True:
            policy = self._policy
            with trio.move_on_after(
                policy.poll_seconds if self._is_subscribed else policy.lonely_poll_seconds
            ):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                info = await self._calls.get_account(self._pubkey)
            except RpcUnavailable:
                continue  # the pool has told; a rate limit is no reason to end
            if info is None:
                self.latest.close()
                return
            self.latest.offer(info, is_pushed=False)

    # ---- the websocket ------------------------------------------------------------------------------

    async def push(self) -> None:
        """Keep a subscription, on the next URL after each loss. Never returns."""
        num_failures = 0
        while True:
            url = self._urls[num_failures % len(self._urls)]
            began = trio.current_time()
            reason = await self._subscribe_until_lost(url)
            self._is_subscribed = False
            self._wake.set()
            # one that held for a while was good: come back to it soon
            num_failures = 1 if trio.current_time() - began > 30 else num_failures + 1
            self._notices(f"websocket {url}", f"websocket {urlsplit(url).hostname}: {reason}; polling")
            await trio.sleep(compute_backoff(num_failures, self._jitter))

    async def _subscribe_until_lost(self, url: str) -> str:
        """Why it ended. What happens within the websocket's block comes in exception groups."""
        reason = ""
        try:
            await self._subscribe(url)
        except* _LOST as group:
            reason = type(_get_first(group)).__name__
        except* SubscriptionLost as group:
            reason = str(_get_first(group))
        return reason

    async def _subscribe(self, url: str) -> None:
        config = RpcAccountInfoConfig(
            encoding=UiAccountEncoding.Base64Zstd, commitment=_LEVELS[self._calls.commitment]
        )
        async with open_websocket(url, connect_seconds=self._policy.answer_seconds) as websocket:
            await websocket.send_message(AccountSubscribe(self._pubkey, config, 1).to_json())
            while True:
                # a provider that takes the subscription and never confirms it is as bad as none
                patience = self._policy.ping_seconds if self._is_subscribed else self._policy.answer_seconds
                with trio.move_on_after(patience) as scope:
                    self._handle(await websocket.get_message())
                if scope.cancelled_caught:
                    if not self._is_subscribed:
                        raise SubscriptionLost("the subscription was not confirmed")
                    with trio.fail_after(self._policy.answer_seconds):
                        await websocket.ping()

    def _handle(self, message: str | bytes) -> None:
        """Take one websocket message. Raises SubscriptionLost."""
        text = message if isinstance(message, str) else message.decode("utf-8", "replace")
        try:
            parsed: Sequence[Any] = parse_websocket_message(text)
        except Exception as error:  # solders' SerdeJSONError derives from Exception alone
            raise SubscriptionLost("answered something that is not JSON-RPC") from error
        for item in parsed:
            if isinstance(item, SubscriptionResult):
                self._is_subscribed = True
                self._wake.set()
            elif isinstance(item, AccountNotification):
                info = to_account_info(self._pubkey, item.result.value, item.result.context.slot)
                if info is None:
                    self._wake.set()  # closed, says the websocket; the poll decides
                else:
                    self.latest.offer(info, is_pushed=True)
            else:
                raise SubscriptionLost("refused the subscription")


def _get_first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain exception of a group, however deep."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


@asynccontextmanager
async def watch(account_watch: AccountWatch) -> AsyncIterator[trio.MemoryReceiveChannel[AccountInfo]]:
    """Run an AccountWatch for the length of a block.

    What the block raises comes out as it is, and not in the exception group of our nursery.
    """
    await account_watch.start()
    raised: Exception | KeyboardInterrupt | None = None
    channel = account_watch.latest.channel
    async with trio.open_nursery() as nursery, channel:
        nursery.start_soon(account_watch.poll)
        nursery.start_soon(account_watch.push)
        try:
            yield channel
        except (Exception, KeyboardInterrupt) as error:
            # closing the channel is cancelled like the rest, which would take the error's place
            raised = error
        finally:
            nursery.cancel_scope.cancel()
            account_watch.latest.close()
    if raised is not None:
        raise raised
