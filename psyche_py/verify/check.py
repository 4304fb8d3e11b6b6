"""The check of one message: does it follow from the momentum that its trainer committed to, and the gradient?

The verifier has the weights of the round, bit for bit, and the batch; it recomputes the gradient at the point
that the commitment names and transforms it (``DistroOptimizer.transform_gradient``, then ``cut_tiles``). Then

    alignment   the whole message points along the gradient; needs no answer from the trainer
    proofs      the revealed tiles are those committed to
    extraction  what was sent is exactly 0 afterwards
    residual    after = decay * before + gradient, but for what was sent; up to rounding of the gradient
    violation, jaccard   what was sent are the largest, with their signs; up to near-ties

The residual is the strong one: ``after - decay * before`` is the gradient that the trainer really used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.payload import GroupMessage, Message, decode_payload
from psyche_py.distro.tilebits import PositionArray, SignArray
from psyche_py.verify.errors import RevealError, VerificationError
from psyche_py.verify.reveal import TileReveal, decode_reveal
from psyche_py.verify.thresholds import Thresholds
from psyche_py.verify.tiles import FloatArray, TileMap
from psyche_py.verify.verdict import Measurement, Reason, Verdict, to_millionths

NEAR_TIE = 0.98
# Of |before|: float32 rounds the momentum, however small the gradient is. Eighty roundings of the last bit.
MOMENTUM_ROUNDING = 1e-5
# Above every threshold.
NOT_ALIGNABLE = 3.0
_BLOCK_TILES = 256


@dataclass(frozen=True)
class CheckInput:
    """What a check starts from.

    payload:      the trainer's message; its hash is the one committed to
    before_root:  that the trainer committed to a round earlier, or compute_zero_root at its first; None where
                  it is not known: what was before then proves nothing, and only alignment, the tiles
                  after the step and extraction are judged
    after_root:   that it committed to with the payload
    tiles:        what the draw sampled
    decay:        the run's compression_decay
    gradient:     float32 [num_stored], tile-major: what the gradient adds to momentum, recomputed
    second:       the same in the other precision, where a run mixes them: shows how far rounding goes
    is_exact:     False where the gradient is not quite at the committed point, since a message that it
                  foresaw is gone: residual, violation and Jaccard are not judged
    """

    layout: PayloadLayout
    payload: bytes
    before_root: bytes | None
    after_root: bytes
    tiles: Sequence[int]
    decay: float
    gradient: FloatArray
    second: FloatArray | None = None
    is_exact: bool = True

    def __post_init__(self) -> None:
        for gradient in (self.gradient, self.second):
            if gradient is None:
                continue
            if gradient.shape != (self.layout.num_stored,) or not np.isfinite(gradient).all():
                raise VerificationError("A recomputed gradient is not of this layout, or not finite.")


def check_message(check: CheckInput, answer: bytes | None, thresholds: Thresholds) -> Verdict:
    """Judge a message by the trainer's ``answer`` to the question for ``check.tiles``; None when none came.

    Raises PayloadError for a payload that no witness would have accepted.
    """
    message = decode_payload(check.layout, check.payload)
    alignment = to_millionths(compute_alignment(check.layout, message, check.gradient))
    tile_map = TileMap(check.layout)
    noise = to_millionths(_compute_noise(check, tile_map))
    cheap = Measurement(alignment=alignment, noise=noise)
    is_judged = not thresholds.is_too_noisy(cheap)
    if is_judged and not thresholds.is_aligned(cheap):
        return Verdict(Reason.ALIGNMENT, cheap)
    if answer is None:
        return Verdict(Reason.NO_ANSWER, cheap)
    try:
        reveals = decode_reveal(check.layout, check.tiles, answer)
    except RevealError:
        return Verdict(Reason.MALFORMED, cheap)
    if not all(reveal.is_proven(check.before_root, check.after_root) for reveal in reveals):
        return Verdict(Reason.PROOF, cheap)
    if not all(is_extracted(tile_map, message, reveal) for reveal in reveals):
        return Verdict(Reason.EXTRACTION, cheap)
    if check.before_root is None or not check.is_exact:
        return Verdict(Reason.NONE if is_judged else Reason.ILL_CONDITIONED, cheap)
    measurement = replace(_measure(check, tile_map, message, reveals), alignment=alignment, noise=noise)
    return Verdict(thresholds.judge(measurement), measurement)


def compute_alignment(layout: PayloadLayout, message: Message, gradient: FloatArray) -> float:
    """Mean over tiles of mean(sign * gradient) over what was sent, divided by rms(gradient).

    About 1.7 for honest work, 0 for noise, below -1 for poison. Tiles with no gradient do not count: old
    momentum speaks there. Where none has one (the learning rate is 0) nothing can be said: NOT_ALIGNABLE.
    """
    total, count = 0.0, 0
    for group, part in zip(layout.groups, message, strict=True):
        values = gradient[group.first_element : group.first_element + group.num_stored]
        tiles = values.reshape(group.num_tiles, group.tile_size)
        for start in range(0, group.num_tiles, _BLOCK_TILES):
            block = slice(start, start + _BLOCK_TILES)
            sums, num = _align(tiles[block], part.positions[block], part.signs[block])
            total, count = total + sums, count + num
    return total / count if count else NOT_ALIGNABLE


def _align(tiles: FloatArray, positions: PositionArray, signs: SignArray) -> tuple[float, int]:
    """Sum of alignments of some tiles, and how many of them count."""
    rms = np.sqrt(np.einsum("ij,ij->i", tiles, tiles, dtype=np.float64) / tiles.shape[1])
    num_sent = np.count_nonzero(signs, axis=1)
    sent = np.take_along_axis(tiles, positions.astype(np.int64), axis=1) * signs
    means = sent.sum(axis=1, dtype=np.float64) / np.maximum(num_sent, 1)
    aligned = np.divide(means, rms, out=np.zeros_like(rms), where=rms > 0)
    return float(aligned.sum()), int(np.count_nonzero(rms))


def is_extracted(tile_map: TileMap, message: Message, reveal: TileReveal) -> bool:
    """Whether all that was sent of a tile is zero afterwards. Needs no gradient."""
    positions, _ = _get_sent(tile_map, message, reveal.tile)
    return not reveal.after[positions].any()


def _get_sent(tile_map: TileMap, message: Message, tile: int) -> tuple[PositionArray, SignArray]:
    """Positions and signs [at most k] that a message sends of a tile."""
    place = tile_map.get_place(tile)
    part: GroupMessage = message[place.group_index]
    signs = part.signs[place.tile]
    is_sent = signs != 0
    return part.positions[place.tile][is_sent], signs[is_sent]


def _measure(
    check: CheckInput, tile_map: TileMap, message: Message, reveals: Sequence[TileReveal]
) -> Measurement:
    """The statistics over the revealed tiles."""
    residuals, likenesses = [], []
    num_wrong, num_claims = 0, 0
    for reveal in reveals:
        place = tile_map.get_place(reveal.tile)
        gradient = check.gradient[place.values].astype(np.float64)
        before = reveal.before.astype(np.float64)
        expected = check.decay * before + gradient
        positions, signs = _get_sent(tile_map, message, reveal.tile)
        unexplained = reveal.after - expected
        unexplained[positions] = 0.0
        size = float(np.linalg.norm(gradient)) + MOMENTUM_ROUNDING * float(np.linalg.norm(before))
        residuals.append(_divide(float(np.linalg.norm(unexplained)), size))
        wrong, claims, likeness = _compare_selection(expected, place.group.topk, positions, signs)
        num_wrong, num_claims = num_wrong + wrong, num_claims + claims
        likenesses.append(likeness)
    return Measurement(
        residual=to_millionths(float(np.mean(residuals))),
        violation=to_millionths(num_wrong / num_claims if num_claims else 0.0),
        jaccard=to_millionths(float(np.mean(likenesses))),
    )


def _compute_noise(check: CheckInput, tile_map: TileMap) -> float:
    """Residual between the verifier's two gradients over the sampled tiles; 0 with one gradient."""
    if check.second is None:
        return 0.0
    shares = []
    for tile in check.tiles:
        values = tile_map.get_place(tile).values
        gradient = check.gradient[values].astype(np.float64)
        difference = float(np.linalg.norm(gradient - check.second[values]))
        shares.append(_divide(difference, float(np.linalg.norm(gradient))))
    return float(np.mean(shares))


def _divide(difference: float, size: float) -> float:
    """A share of at most 1; whatever is left where nothing may be is 1."""
    if size == 0.0:
        return float(difference > 0.0)
    return min(1.0, difference / size)


def _compare_selection(
    expected: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    topk: int,
    positions: PositionArray,
    signs: SignArray,
) -> tuple[int, int, float]:
    """(claims that are wrong, claims, Jaccard index) of one tile.

    A claim is wrong when its value, turned by its sign, is below NEAR_TIE of the k-th largest magnitude, or
    not above 0. A coefficient that should have been sent and was not counts as a wrong claim.
    """
    magnitudes = np.abs(expected)
    # Few are as large as the k-th; of equal ones the first counts, as it does when a trainer selects.
    leading = np.flatnonzero(magnitudes >= np.partition(magnitudes, -topk)[-topk])
    own = leading[np.argsort(-magnitudes[leading], kind="stable")][:topk]
    own = own[magnitudes[own] > 0]
    limit = NEAR_TIE * float(magnitudes[own[-1]]) if len(own) == topk else 0.0
    claimed = expected[positions] * signs
    num_missing = max(0, len(own) - len(positions))
    num_wrong = int(np.count_nonzero((claimed < limit) | (claimed <= 0))) + num_missing
    common = len(np.intersect1d(own, positions.astype(np.int64), assume_unique=True))
    union = len(own) + len(positions) - common
    return num_wrong, len(positions) + num_missing, common / union if union else 1.0
