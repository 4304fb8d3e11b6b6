"""Small random problems on which a Triton kernel has to agree with torch before it is used.

Each check returns None, or what is wrong. What replicas share is compared bit by bit; what is a sender's own
(the floats of its transform) to a tolerance, and what it says of them exactly.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from psyche_py.distro.compress import extract_message
from psyche_py.distro.layout import Member, Slot, TileGroup
from psyche_py.distro.payload import GroupMessage, get_position_dtype
from psyche_py.distro.sparsify import make_segment_table
from psyche_py.distro.steps import compute_unit, count_units, get_step_rule
from psyche_py.distro.transform import choose_precision, get_frequencies, iterate_sums
from psyche_py.distro.trig import dct_matrix
from psyche_py.distro.triton_launch import fold_slot, move_slot
from psyche_py.distro.update import make_table_rows, move_matrix
from psyche_py.distro.workspace import Workspace

_TOLERANCE = 1e-5  # of the largest coefficient; float32 products of 64 terms are good to 1e-6
_DECAY, _SCALE = 0.5, 0.75  # exact, so that decay alone rounds nothing
_MESSAGES, _TOPK = 5, 8  # no whole number of blocks
_LR, _FACTOR = 0.0371, 1.0 - 0.0371 * 0.1


def make_slots(height: int, width: int) -> list[Slot]:
    """Two matrices: with columns in whole tiles, and with a rest; rows have one in both."""
    shapes = [(2 * height - 3, 2 * width), (height + 1, 3 * width - 5)]
    return [Slot("w", (Member("w", s, 0),), *s, height, width, 0, 0) for s in shapes]


def make_group(slot: Slot, topk: int) -> TileGroup:
    """A group of this slot alone."""
    return TileGroup(slot.height, slot.width, topk, (slot,), slot.num_tiles, 0, 0)


# -- from gradient to message --


def check_fold(device: torch.device, height: int, width: int, topk: int, dtype: torch.dtype) -> str | None:
    """Messages from equal momentum are torch's; momentum itself is, but for the last bits."""
    generator = torch.Generator().manual_seed(topk)
    for slot in make_slots(height, width):
        shape = (slot.rows, slot.cols)
        momentum = make_momentum(slot, generator).to(device)
        for gradient in (None, torch.zeros(shape, dtype=dtype, device=device)):
            problem = compare_messages(slot, topk, momentum, gradient)
            if problem is not None:
                return problem
        gradient = torch.randn(shape, generator=generator).to(device, dtype)
        problem = compare_momentum(slot, topk, momentum, gradient)
        if problem is not None:
            return problem
    return None


def make_momentum(slot: Slot, generator: torch.Generator) -> Tensor:
    """[padded shape] with many ties and zeros of both signs, the first tile empty, the last nearly so."""
    shape = slot.padded_shape
    momentum = torch.randint(-6, 7, shape, generator=generator).to(torch.float32) * 0.25
    momentum *= torch.where(torch.rand(shape, generator=generator) < 0.5, 1.0, -1.0)
    momentum[: slot.height, : slot.width] = 0.0
    momentum[-slot.height :, -slot.width :] = 0.0
    momentum[-1, -1] = -1e-40  # below the normal numbers, and still to be sent
    return momentum


def run_fold(slot: Slot, topk: int, momentum: Tensor, gradient: Tensor | None) -> tuple[GroupMessage, Tensor]:
    """The kernel's message, and momentum afterwards."""
    after, shape = momentum.clone(), (slot.num_tiles, topk)
    positions = torch.full(shape, -1, dtype=torch.int16, device=momentum.device)
    signs = torch.full(shape, 7, dtype=torch.int8, device=momentum.device)
    fold_slot(after, gradient, slot, _DECAY, _SCALE, positions, signs)
    return GroupMessage(positions.cpu().numpy(), signs.cpu().numpy()), after


def compare_messages(slot: Slot, topk: int, momentum: Tensor, gradient: Tensor | None) -> str | None:
    """The gradient is zero or none, so both paths choose from the same numbers."""
    message, after = run_fold(slot, topk, momentum, gradient)
    group, expected = make_group(slot, topk), momentum * _DECAY
    table = make_segment_table(group, momentum.device)
    wanted = extract_message(expected.view(-1), None, table, group)
    if not (
        np.array_equal(message.positions, wanted.positions) and np.array_equal(message.signs, wanted.signs)
    ):
        return "it chose other coefficients than torch"
    return None if torch.equal(after, expected) else "it left another momentum than torch"


def compare_momentum(slot: Slot, topk: int, momentum: Tensor, gradient: Tensor) -> str | None:
    """What was not sent is float64's to a tolerance; what was sent had its sign and was large enough.

    Not torch's float32: a caller may have allowed it to round products to fewer bits.
    """
    message, after = run_fold(slot, topk, momentum, gradient)
    tiles, left = cut(slot, fold_in_float64(slot, momentum, gradient)), cut(slot, after.cpu().double())
    tolerance = _TOLERANCE * float(tiles.abs().max())
    places = torch.from_numpy(message.positions.astype(np.int64))
    signs = torch.from_numpy(message.signs)
    sent = tiles.gather(1, places)
    if not bool((signs != 0).all()) or not torch.equal(torch.sign(sent), signs.double()):
        return "it sent other signs than those of its transform"
    if bool(left.gather(1, places).any()):
        return "it left what it sent in the momentum"
    kept = tiles.scatter(1, places, 0.0)
    if float((left - kept).abs().max()) > tolerance:
        return "its transform is wrong"
    is_led = sent.abs().amin(1) >= kept.abs().amax(1) - tolerance
    return None if bool(is_led.all()) else "it passed larger coefficients over"


def fold_in_float64(slot: Slot, momentum: Tensor, gradient: Tensor) -> Tensor:
    """The new momentum by the definition, float64 [padded shape] on the CPU."""
    h, w = slot.height, slot.width
    padded = np.zeros(slot.padded_shape)
    padded[: slot.rows, : slot.cols] = gradient.double().cpu().numpy()
    tiles = padded.reshape(slot.bands, h, slot.across, w).transpose(0, 2, 1, 3)
    left, right = (dct_matrix(n)[get_frequencies(n)] for n in (h, w))
    added = (left @ tiles @ right.T).transpose(0, 2, 1, 3).reshape(slot.padded_shape)
    return momentum.cpu().double() * _DECAY + _SCALE * torch.from_numpy(added)


def cut(slot: Slot, matrix: Tensor) -> Tensor:
    """[padded shape] to [tiles, elements of a tile]."""
    tiles = matrix.view(slot.bands, slot.height, slot.across, slot.width).transpose(1, 2)
    return tiles.reshape(slot.num_tiles, -1)


# -- from messages to weights --


def check_move(
    device: torch.device, height: int, width: int, block: int, is_dense: bool, dtype: torch.dtype
) -> str | None:
    """Weights are torch's to the bit, in place and in a target, with and without decay, linear and signs."""
    rng = np.random.default_rng(block)
    for slot in make_slots(height, width):
        group = make_group(slot, _TOPK)
        shape = (slot.num_tiles, _MESSAGES, _TOPK)
        # few positions, so that messages meet; a fifth of the coefficients is absent
        positions = rng.integers(0, min(300, group.tile_size), shape).astype(get_position_dtype(group))
        signs = rng.choice(np.array([-1, -1, 0, 1, 1], dtype=np.int8), shape)
        positions[signs == 0] = 0
        weights = make_weights(slot, rng).to(device, dtype)
        places, votes = (torch.from_numpy(x).to(device) for x in (positions.view(np.int16), signs))
        for levels, factor in itertools.product((1, 16), (1.0, float(np.float32(_FACTOR)))):
            wanted = move_by_torch(slot, group, positions, signs, weights, levels, factor)
            unit, rule = compute_unit(_LR, levels), get_step_rule(group, _MESSAGES, levels)
            here, target = weights.clone(), torch.full_like(weights, 3.0)
            for onto, source in ((here, here), (target, weights)):
                move_slot(onto, source, slot, group, places, votes, rule, unit, factor, block, is_dense)
                if not torch.equal(get_bits(onto), get_bits(wanted)):
                    return f"its weights are not torch's (levels {levels}, decay factor {factor})"
    return None


def make_weights(slot: Slot, rng: np.random.Generator) -> Tensor:
    """float32 [rows, cols] of many magnitudes, zeros of both signs, and numbers below the normal ones."""
    shape = (slot.rows, slot.cols)
    weights = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 4, shape)
    weights[:, 0], weights[:, 1], weights[:, 2] = -0.0, 0.0, 1e-40
    return torch.from_numpy(weights.astype(np.float32))


def move_by_torch(
    slot: Slot,
    group: TileGroup,
    positions: np.ndarray,
    signs: np.ndarray,
    weights: Tensor,
    levels: int,
    factor: float,
) -> Tensor:
    """The weights as torch moves them."""
    workspace = Workspace(weights.device)
    rule = get_step_rule(group, positions.shape[1], levels)
    terms = make_table_rows(group, positions, signs, weights.device)
    blocks = iterate_sums(slot, terms, choose_precision(group, positions.shape[1]), workspace)
    units = ((bands, count_units(sums, rule)) for bands, sums in blocks)
    target = torch.empty_like(weights)
    decay = None if factor == 1.0 else factor
    move_matrix(slot, units, weights, target, compute_unit(_LR, levels), decay, workspace)
    return target


def get_bits(x: Tensor) -> Tensor:
    """Its bits as integers: zeros of both signs differ."""
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)
