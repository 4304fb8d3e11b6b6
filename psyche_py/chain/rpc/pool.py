"""Several endpoints as one: ask the best, move on when it fails, wait when all rest, up to a deadline."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
from solana.rpc.async_api import AsyncClient

from psyche_py.chain.errors import ChainError, RateLimited, RpcUnavailable
from psyche_py.chain.rpc import policy
from psyche_py.chain.rpc.endpoint import Endpoint, EndpointDown, EndpointLimited

T = TypeVar("T")
NOTICE_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Notices:
    """Says a thing once a minute however often it happens."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell or _log.warning
        self._told: dict[str, float] = {}

    def __call__(self, kind: str, message: str) -> None:
        """Tell ``message`` unless one of this ``kind`` was told within the last minute."""
        now = trio.current_time()
        if now - self._told.get(kind, -NOTICE_SECONDS) >= NOTICE_SECONDS:
            self._told[kind] = now
            self._tell(message)


class RpcPool:
    """See the module."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        notices: Notices,
        random: Callable[[], float],
        attempt_seconds: float,
        deadline_seconds: float,
    ) -> None:
        """``attempt_seconds`` bounds one question to one endpoint, ``deadline_seconds`` a whole call."""
        if not endpoints:
            raise ValueError("a pool needs an endpoint")
        self._endpoints = list(endpoints)
        self._healths = [policy.Health() for _ in endpoints]
        self._notices = notices
        self._random = random
        self._attempt_seconds = attempt_seconds
        self.deadline_seconds = deadline_seconds

    async def call(
        self,
        request: Callable[[AsyncClient], Awaitable[T]],
        *,
        deadline_seconds: float | None = None,
        is_patient: bool = True,
    ) -> T:
        """Ask until an endpoint answers.

        ``is_patient`` False: give up when every endpoint has failed once. Raises RateLimited or
        RpcUnavailable then or at the deadline; RpcRefused, PreflightFailed at once.
        """
        seconds = self.deadline_seconds if deadline_seconds is None else deadline_seconds
        deadline = trio.current_time() + seconds
        problem = ""
        while True:
            now = trio.current_time()
            index = policy.choose(self._healths, now)
            if index is None:
                wait = policy.compute_wait(self._healths, now)
                if now + wait > deadline or (problem and not is_patient):
                    raise self._give_up(problem, seconds, wait)
                await trio.sleep(wait)
                continue
            if now >= deadline:
                raise self._give_up(problem, seconds, 0.0)
            endpoint = self._endpoints[index]
            try:
                with trio.fail_after(min(self._attempt_seconds, deadline - now)):
                    result = await endpoint.ask(request)
            except EndpointLimited as error:
                problem = f"{endpoint.name} limits our requests"
                self._set(index, policy.after_rate_limit(self._healths[index], now, error.retry_after))
            except EndpointDown as error:
                problem = f"{endpoint.name} {error}"
                self._fail(index)
            except trio.TooSlowError:
                problem = f"{endpoint.name} did not answer in time"
                self._fail(index)
            else:
                self._healths[index] = policy.Health()
                return result
            self._tell(index, problem)

    def _set(self, index: int, health: policy.Health) -> None:
        self._healths[index] = health

    def _fail(self, index: int) -> None:
        now = trio.current_time()
        self._set(index, policy.after_failure(self._healths[index], now, self._random()))

    def _tell(self, index: int, problem: str) -> None:
        following = policy.choose(self._healths, trio.current_time())
        action = "waiting" if following is None else f"using {self._endpoints[following].name}"
        self._notices(self._endpoints[index].name, f"{problem}; {action}")

    def _give_up(self, problem: str, seconds: float, wait: float) -> ChainError:
        what = f"No answer from the cluster: {problem or 'all endpoints rest'} (patience: {seconds:g} s)."
        if all(health.is_limited for health in self._healths):
            return RateLimited(
                what, "Use an endpoint with a higher limit, or add a second one.", retry_after_seconds=wait
            )
        return RpcUnavailable(
            what, "Check the network and the URL (-u), or add a second endpoint, separated by a comma."
        )

    async def aclose(self) -> None:
        """Close all connections."""
        for endpoint in self._endpoints:
            await endpoint.aclose()
