"""Cheats: what a trainer can send and commit to instead of honest work. No run can switch one on.

Every cheat is as consistent as it can be: momentum, roots and answers fit each other unless the cheat is that
they do not. A cheat takes the fleet, the honest scene and random numbers, and returns what the verifier gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from verify_fleet import Fleet, Scene

from psyche_py.distro import DistroOptimizer
from psyche_py.distro.payload import (
    GroupMessage,
    decode_payload,
    encode_payload,
    get_position_dtype,
    make_group_message,
)
from psyche_py.distro.sparsify import get_element_indices, make_segment_table
from psyche_py.verify import MomentumSnapshot, encode_reveal

Generator = np.random.Generator


@dataclass(frozen=True)
class Deed:
    """What the cheater claims, and how it answers when asked for tiles."""

    scene: Scene
    answer: Callable[[Sequence[int]], bytes | None]


Cheat = Callable[[Fleet, Scene, Generator], Deed]


# -- less work, other work: a consistent history with another gradient --


def _forge(fleet: Fleet, scene: Scene, forger: DistroOptimizer | None = None) -> Deed:
    """Fold whatever is in ``.grad`` into the trainer's momentum and send what follows."""
    forger = fleet.bench if forger is None else forger
    state = forger.state_dict()
    state["momentum"] = scene.momentum
    forger.load_state_dict(state)
    payload = forger.step(scene.lr)
    forged = replace(scene, payload=payload, after=MomentumSnapshot(fleet.layout, forger.momentum))
    forger.reset()
    forger.zero_grad()
    return Deed(forged, forged.answer)


def no_work(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Old momentum only: freeloading."""
    fleet.bench.zero_grad()
    return _forge(fleet, scene)


def noise_gradient(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Random numbers of the gradient's size."""
    fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    for p in fleet.model.parameters():
        if p.grad is not None:
            scale = p.grad.norm() / p.numel() ** 0.5
            p.grad = torch.randn(p.shape, generator=generator) * scale
    return _forge(fleet, scene)


def _use_tokens(choose: Callable[[Fleet, Scene], torch.Tensor]) -> Cheat:
    def cheat(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
        fleet.compute_public_gradient(scene, choose(fleet, scene), scene.compute)
        return _forge(fleet, scene)

    return cheat


def _use_share(numerator: int, denominator: int) -> Cheat:
    def choose(fleet: Fleet, scene: Scene) -> torch.Tensor:
        return scene.tokens[: max(1, len(scene.tokens) * numerator // denominator)]

    return _use_tokens(choose)


def _stale(age: int) -> Cheat:
    def cheat(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
        with fleet.use_old_weights(age):
            fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
        return _forge(fleet, scene)

    return cheat


def _scale(factor: float) -> Cheat:
    """The clipped gradient, times a factor that no clipping takes back."""

    def cheat(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
        fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
        parameters = list(fleet.model.parameters())
        torch.nn.utils.clip_grad_norm_(parameters, fleet.config.clip_grad_norm or math.inf)
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
        return _forge(fleet, scene, fleet.make_optimizer(replace(fleet.config, clip_grad_norm=None)))

    return cheat


def half_the_tensors(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Every second tensor gets no gradient."""
    fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
    for p in list(fleet.model.parameters())[::2]:
        p.grad = None
    return _forge(fleet, scene)


def _get_other_tokens(fleet: Fleet, scene: Scene) -> torch.Tensor:
    return fleet.tokens[scene.step][scene.worker - 1]


def _get_last_tokens(fleet: Fleet, scene: Scene) -> torch.Tensor:
    return fleet.tokens[max(0, scene.step - 1)][scene.worker]


def _get_half_sequences(fleet: Fleet, scene: Scene) -> torch.Tensor:
    return scene.tokens[:, : scene.tokens.shape[1] // 2 + 1]


# -- the work is done, but the message does not say what it found --


def _send(fleet: Fleet, scene: Scene, message: Sequence[GroupMessage]) -> Deed:
    """True momentum, with what ``message`` sends taken out."""
    fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
    gradient = fleet.bench.transform_gradient(scene.lr)
    momentum = scene.momentum * fleet.config.compression_decay + gradient
    for group, part in zip(fleet.layout.groups, message, strict=True):
        buffer = momentum[group.first_element : group.first_element + group.num_stored]
        positions = torch.from_numpy(part.positions.astype(np.int64))
        table = make_segment_table(group, buffer.device)
        indices = get_element_indices(table, positions, group.width)
        buffer.index_fill_(0, indices[torch.from_numpy(part.signs != 0)], 0.0)
    payload = encode_payload(fleet.layout, tuple(message))
    forged = replace(scene, payload=payload, after=MomentumSnapshot(fleet.layout, momentum))
    return Deed(forged, forged.answer)


def random_payload(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Any positions, any signs."""
    message = []
    for group in fleet.layout.groups:
        keys = rng.random((group.num_tiles, group.tile_size))
        positions = np.argpartition(keys, group.topk - 1, axis=1)[:, : group.topk].astype(np.int64)
        values = rng.standard_normal(positions.shape).astype(np.float32)
        message.append(make_group_message(positions, values, get_position_dtype(group)))
    return _send(fleet, scene, message)


def copied_payload(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """The message of another trainer."""
    other = fleet.results[scene.step][scene.worker - 1]
    return _send(fleet, scene, decode_payload(fleet.layout, other))


def _change_signs(change: Callable[[np.ndarray, Generator], np.ndarray]) -> Cheat:
    def cheat(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
        message = decode_payload(fleet.layout, scene.payload)
        return _send(fleet, scene, [GroupMessage(x.positions, change(x.signs, rng)) for x in message])

    return cheat


def _randomize(signs: np.ndarray, rng: Generator) -> np.ndarray:
    return signs * rng.choice(np.array([-1, 1], dtype=np.int8), signs.shape)


# -- the answer --


def refusal(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """No answer after no work."""
    return replace(no_work(fleet, scene, rng), answer=lambda tiles: None)


def cut_answer(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """An answer of the wrong length."""
    deed = no_work(fleet, scene, rng)
    return replace(deed, answer=lambda tiles: deed.scene.answer(tiles)[:-1])


def other_tiles(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """True values and paths, of tiles that nobody asked for."""
    num = fleet.layout.num_tiles
    return Deed(scene, lambda tiles: scene.answer([(tile + 1) % num for tile in tiles]))


def forged_after(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Committed to no work; does the work when asked, and shows that."""
    deed = no_work(fleet, scene, rng)
    lie = replace(scene, payload=deed.scene.payload)
    return replace(deed, answer=lie.answer)


def forged_before(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Shows a past momentum from which no work would follow."""
    deed = no_work(fleet, scene, rng)
    past = MomentumSnapshot(fleet.layout, scene.momentum * 0.5)
    return replace(deed, answer=lambda tiles: encode_reveal(past, deed.scene.after, tiles))


def late_commit(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Commits to anything, and makes up a history once the tiles are known."""
    empty = MomentumSnapshot(fleet.layout, torch.zeros_like(scene.momentum))
    claimed = replace(scene, after=empty)
    return Deed(claimed, scene.answer)


def keep_what_was_sent(fleet: Fleet, scene: Scene, rng: Generator) -> Deed:
    """Sends the largest and keeps them: the same message again and again, for the price of one."""
    momentum = torch.zeros_like(scene.momentum)
    fleet.compute_public_gradient(scene, scene.tokens, scene.compute)
    momentum += scene.momentum * fleet.config.compression_decay + fleet.bench.transform_gradient(scene.lr)
    forged = replace(scene, after=MomentumSnapshot(fleet.layout, momentum))
    return Deed(forged, forged.answer)


CHEATS: dict[str, Cheat] = {
    "no_work": no_work,
    "noise_gradient": noise_gradient,
    "stale_model_1": _stale(1),
    "stale_model_10": _stale(10),
    "quarter_batch": _use_share(1, 4),
    "half_batch": _use_share(1, 2),
    "three_quarter_batch": _use_share(3, 4),
    "half_sequences": _use_tokens(_get_half_sequences),
    "half_the_tensors": half_the_tensors,
    "other_data": _use_tokens(_get_other_tokens),
    "stale_batch": _use_tokens(_get_last_tokens),
    "negated_gradient": _scale(-1.0),
    "scaled_gradient": _scale(10.0),
    "random_payload": random_payload,
    "copied_payload": copied_payload,
    "random_signs": _change_signs(_randomize),
    "negated_signs": _change_signs(lambda signs, rng: -signs),
    "kept_what_was_sent": keep_what_was_sent,
    "refusal": refusal,
    "cut_answer": cut_answer,
    "other_tiles": other_tiles,
    "forged_after": forged_after,
    "forged_before": forged_before,
    "late_commit": late_commit,
}
