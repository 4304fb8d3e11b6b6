"""Faults of the chain, of endpoints and of clocks, and what an owner does in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from psyche_py.client.clock import RESYNC_SECONDS
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.layout import RunState
from psyche_py.sim.chain import SLOT_SECONDS

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient
    from psyche_py.sim.faults import Fault
    from psyche_py.sim.world import World

OWNER_RETRY_SECONDS = 2.0
CLOCK_TOLERANCE_SECONDS = 1.5
"""The chain counts whole seconds: a client takes less than this for no offset at all."""


def _rpc_gap(world: World, fault: Fault) -> None:
    """Their endpoint is away: nothing is heard of the chain, and nothing sent lands."""
    for number in fault.clients:
        client = world.clients[number]
        client.endpoint.gone_until = fault.get_end(world)
        if fault.seconds:
            world.clock.after(fault.seconds, world.tell, client)


def _rpc_lag(world: World, fault: Fault) -> None:
    """Their endpoint shows the account as it was ``value`` seconds ago."""
    for number in fault.clients:
        endpoint = world.clients[number].endpoint
        endpoint.lags_until, endpoint.lag_seconds = fault.get_end(world), fault.value


def _rate_limit(world: World, fault: Fault) -> None:
    """Their endpoint lets them read once and send once every ``value`` seconds."""
    for number in fault.clients:
        endpoint = world.clients[number].endpoint
        endpoint.limited_until, endpoint.limit_seconds = fault.get_end(world), fault.value


def _expire(world: World, fault: Fault) -> None:
    """Their transactions name blockhashes that expire: each fails, a minute later."""
    for number in fault.clients:
        world.clients[number].endpoint.expires_until = fault.get_end(world)


def _halt_chain(world: World, fault: Fault) -> None:
    """No slot ends for ``seconds``."""
    world.chain.down_until = fault.get_end(world)


def _slow_chain(world: World, fault: Fault) -> None:
    """A slot takes ``value`` times as long."""
    chain = world.chain
    chain.slot_seconds = SLOT_SECONDS * max(fault.value, 1.0)
    if fault.seconds:
        world.clock.after(fault.seconds, setattr, chain, "slot_seconds", SLOT_SECONDS)


def _fork(world: World, fault: Fault) -> None:
    """The chain goes ``value`` slots back; what had landed lands again in another order, one in ten not.

    A state begins in the midst of a slot: the fork comes when that has ended, and takes it back too.
    """
    world.clock.after(0.0, world.chain.fork, int(fault.value) or 1, 0.1, world.rng)


def _skew(world: World, fault: Fault) -> None:
    """Their clocks jump ``value`` seconds away from the chain's, until they are compared the next time."""
    for number in fault.clients:
        client = world.clients[number]
        client.skew_seconds = fault.value
        client.later(RESYNC_SECONDS * world.rng.random(), _compare_clock, client)


def _compare_clock(client: SimClient) -> None:
    if client.world.clock.now < client.endpoint.gone_until:
        client.later(RESYNC_SECONDS, _compare_clock, client)
    elif abs(client.skew_seconds) >= CLOCK_TOLERANCE_SECONDS:
        client.skew_seconds = 0.0


# ---- the owner --------------------------------------------------------------------------------------------


def _pause(world: World, fault: Fault) -> None:
    """The owner pauses, changes a time limit once the run is paused, and resumes ``seconds`` later."""
    world.chain.submit(rules.process_set_paused, {"paused": True})

    def resume() -> None:
        if world.account.run_state is not RunState.Paused:
            world.clock.after(OWNER_RETRY_SECONDS, resume)
            return
        config = replace(
            world.account.config, max_round_train_time=world.account.config.max_round_train_time + 1
        )
        world.chain.submit(rules.process_update, {"config": config.to_bytes()})
        world.chain.submit(rules.process_set_paused, {"paused": False})

    world.clock.after(fault.seconds + OWNER_RETRY_SECONDS, resume)


def _change_rates(world: World, fault: Fault) -> None:
    """The owner sets ``value`` points for the epochs to come."""
    rates = {"earning_rate_total_shared": int(fault.value)}
    world.chain.submit(rules.process_set_future_epoch_rates, rates)


def _describe(world: World, fault: Fault) -> None:
    """The owner changes what people read about the run, in the middle of a round."""
    metadata = replace(world.account.metadata, description=f"changed at step {fault.step}")
    world.chain.submit(rules.process_update, {"metadata": metadata.to_bytes()})


CHAIN_KINDS: dict[str, Callable[[World, Fault], None]] = {
    "rpc_gap": _rpc_gap,
    "rpc_lag": _rpc_lag,
    "rate_limit": _rate_limit,
    "expire": _expire,
    "halt_chain": _halt_chain,
    "slow_chain": _slow_chain,
    "fork": _fork,
    "skew": _skew,
    "pause": _pause,
    "change_rates": _change_rates,
    "describe": _describe,
}
