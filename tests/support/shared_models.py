"""Models to share, and meshes to share them over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import trio
from trio.testing import MockClock

from psyche_py.client.model_share import ModelShare, SharedModel
from psyche_py.distro.digest import describe_model
from psyche_py.model.loader import canonicalize_config, load_from_config
from psyche_py.model.sharing import ModelSnapshot
from psyche_py.observe.events import Event, EventSink
from psyche_py.p2p.memory import Link, MemoryHub, MemoryNetwork
from psyche_py.p2p.port import PeerInfo

NANO = Path(__file__).parents[2] / "configs" / "models" / "nano"
EPOCH = 3
FAST = Link(0.01, bytes_per_second=1e6)


def make_snapshot(seed: int = 1, files: dict[str, bytes] | None = None) -> ModelSnapshot:
    """The nano model as it is shared."""
    loaded = load_from_config(NANO, seed)
    tensors = {name: p.detach() for name, p in loaded.model.named_parameters()}
    manifest = describe_model(tensors, canonicalize_config(loaded.config_json))
    return ModelSnapshot(manifest, loaded.config_json, files or {}, tensors)


def are_equal(model: torch.nn.Module, snapshot: ModelSnapshot) -> bool:
    """Same parameters, bit by bit."""
    named = dict(model.named_parameters())
    return named.keys() == snapshot.tensors.keys() and all(
        torch.equal(p.detach().view(torch.int32), snapshot.tensors[name].view(torch.int32))
        for name, p in named.items()
    )


def offer(node: MemoryNetwork, snapshot: ModelSnapshot, epoch: int = EPOCH) -> ModelShare:
    """Make this node a donor."""
    share = ModelShare(node)
    share.offer(SharedModel.of_snapshot(epoch, snapshot))
    return share


class Log:
    """What the client would write into its event file."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sink = EventSink(None, trio.current_time, self.events.append)

    def get(self, kind: str) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event["kind"] == kind]


@asynccontextmanager
async def open_mesh(
    num: int, link: Link = FAST
) -> AsyncIterator[tuple[MemoryHub, MemoryNetwork, list[MemoryNetwork]]]:
    """The hub, a receiver, and ``num`` others."""
    hub = MemoryHub(default_link=link)
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(hub.open_network(bytes([n + 1]) * 32)) for n in range(num + 1)
        ]
        for node in nodes:
            node.set_peers([PeerInfo(other.key, other.hint) for other in nodes])
        yield hub, nodes[0], nodes[1:]


async def work_here(function: Callable[..., object], *args: object, **options: object) -> object:
    """In the place of `trio.to_thread.run_sync`: virtual time must not pass while a thread works."""
    await trio.lowlevel.checkpoint()
    return function(*args)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """In virtual time."""
    with patch.object(trio.to_thread, "run_sync", work_here):
        trio.run(main, clock=MockClock(autojump_threshold=0))
