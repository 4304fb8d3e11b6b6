"""From gradient to message, and from messages to weights, on a GPU: a whole tile in one program.

Triton compiles these for the device at hand when they are first launched (see ``triton_launch``). A tile is
read once, lives in registers and is written once. Float32 products are ``ieee``: no TF32. Who launches them
must forbid fused multiply-add (``enable_fp_fusion``): weights see one rounding for each operation.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Adding and subtracting it rounds what is below 2**22 to an integer, halves to even; see ``simd``.
ROUNDER = tl.constexpr(1.5 * 2**23)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
MAGNITUDE_BITS = tl.constexpr(31)
# A slot's part begins anywhere in its group's; a kernel for each alignment would gain nothing.
MESSAGES = ["positions", "signs"]


@triton.jit
def _locate(tile, across, stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Row numbers [HEIGHT, 1], column numbers [1, WIDTH] and offsets of a tile in a matrix."""
    rows = (tile // across) * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    cols = (tile % across) * WIDTH + tl.arange(0, WIDTH)[None, :]
    return rows, cols, rows.to(tl.int64) * stride + cols


@triton.jit
def _as_float32(x):
    """Exact; the bits of a bfloat16 come as an int16, since those are the upper half of a float32's."""
    if x.dtype == tl.int16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def _round_to(x, dtype: tl.constexpr):
    """A float32 as ``dtype``, rounded once, halves to even; int16 are the bits of a bfloat16."""
    if dtype == tl.int16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x != x, 0x7FC0, rounded).to(tl.int16)
    return x.to(dtype)


# -- from gradient to message --


@triton.jit
def _load_part(gradient, up, right, rows, cols, row_stride, col_stride):
    """Gradient at rows ``up`` and columns ``right``; zeros where the matrix has ended."""
    place = up.to(tl.int64) * row_stride + right.to(tl.int64) * col_stride
    return _as_float32(tl.load(gradient + place, mask=(up < rows) & (right < cols), other=0))


@triton.jit
def _load_table(table, first_row, side: tl.constexpr, num: tl.constexpr):
    """[num, num] of a table [side, side]: rows from ``first_row``, columns from 0."""
    n = tl.arange(0, num)
    return tl.load(table + (first_row + n)[:, None] * side + n[None, :])


@triton.jit
def _transform_sides(block, left, right):
    """left @ block @ right transposed."""
    return tl.dot(tl.dot(left, block, input_precision="ieee"), tl.trans(right), input_precision="ieee")


@triton.jit
def _beside(a, b):
    """[h, w] twice to [h, 2 w]."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), [a.shape[0], 2 * a.shape[1]])


@triton.jit
def _above(a, b):
    """[h, w] twice to [2 h, w]."""
    return tl.reshape(tl.permute(tl.join(a, b), (2, 0, 1)), [2 * a.shape[0], a.shape[1]])


@triton.jit
def _transform_whole(
    gradient, left_table, right_table, top, left, rows, cols, row_stride, col_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """DCT of the tile at [top, left], two products with whole tables."""
    up, right = top + tl.arange(0, HEIGHT)[:, None], left + tl.arange(0, WIDTH)[None, :]
    block = _load_part(gradient, up, right, rows, cols, row_stride, col_stride)
    by_height = _load_table(left_table, 0, HEIGHT, HEIGHT)
    return _transform_sides(block, by_height, _load_table(right_table, 0, WIDTH, WIDTH))


@triton.jit
def _transform_split(
    gradient, left_table, right_table, top, left, rows, cols, row_stride, col_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The same by sums and differences of mirrored rows and columns: half of the multiplications.

    Even frequencies come first, so each of the four combinations is a quarter of the tile. The products
    are short enough to be unrolled in registers, which those of 64 are not.
    """
    H: tl.constexpr = HEIGHT // 2
    W: tl.constexpr = WIDTH // 2
    h, w = tl.arange(0, H)[:, None], tl.arange(0, W)[None, :]
    up, down = top + h, top + (HEIGHT - 1 - h)
    near, far = left + w, left + (WIDTH - 1 - w)
    a = _load_part(gradient, up, near, rows, cols, row_stride, col_stride)
    b = _load_part(gradient, up, far, rows, cols, row_stride, col_stride)
    c = _load_part(gradient, down, near, rows, cols, row_stride, col_stride)
    d = _load_part(gradient, down, far, rows, cols, row_stride, col_stride)
    even_rows, odd_rows = _load_table(left_table, 0, HEIGHT, H), _load_table(left_table, H, HEIGHT, H)
    even_cols, odd_cols = _load_table(right_table, 0, WIDTH, W), _load_table(right_table, W, WIDTH, W)
    even = _beside(
        _transform_sides((a + c) + (b + d), even_rows, even_cols),
        _transform_sides((a + c) - (b + d), even_rows, odd_cols),
    )
    odd = _beside(
        _transform_sides((a - c) + (b - d), odd_rows, even_cols),
        _transform_sides((a - c) - (b - d), odd_rows, odd_cols),
    )
    return _above(even, odd)


@triton.jit
def _count(marks):
    return tl.sum(tl.sum(marks.to(tl.int32), 1), 0)


@triton.jit
def _find_threshold(magnitudes, TOPK: tl.constexpr):
    """The ``TOPK``-th largest magnitude, bit by bit; 0 where fewer are not zero."""
    threshold, bit = 0, 1 << 30
    for _ in range(MAGNITUDE_BITS):
        candidate = threshold | bit
        threshold = tl.where(_count(magnitudes >= candidate) >= TOPK, candidate, threshold)
        bit = bit >> 1
    return threshold


@triton.jit
def _select(values, TOPK: tl.constexpr):
    """The leading TOPK of a tile: larger magnitude first, then smaller position, zeros never.

    Returns marks [h, w], and the rank of each marked one in the order of positions.
    """
    magnitudes = values.to(tl.int32, bitcast=True) & MAGNITUDE
    threshold = _find_threshold(magnitudes, TOPK)
    above = magnitudes > threshold
    equal = (magnitudes == threshold) & (magnitudes > 0)
    # how many of both come before an element: one scan of two counters, neither passes 4,096
    marks = above.to(tl.int32) * 65536 + equal.to(tl.int32)
    per_row = tl.sum(marks, 1)
    rows_before = tl.cumsum(per_row, 0) - per_row
    before = rows_before[:, None] + tl.cumsum(marks, 1) - marks
    above_before, equal_before = before >> 16, before & 0xFFFF
    wanted = TOPK - _count(above)
    chosen = above | (equal & (equal_before < wanted))
    return chosen, above_before + tl.minimum(equal_before, wanted)


@triton.jit(do_not_specialize=["rows", "across"], do_not_specialize_on_alignment=MESSAGES)
def fold_tiles(
    momentum,
    gradient,
    left_table,
    right_table,
    positions,
    signs,
    rows,
    cols,
    row_stride,
    col_stride,
    across,
    decay,
    scale,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    TOPK_PADDED: tl.constexpr,
    HAS_GRADIENT: tl.constexpr,
):
    """momentum = decay * momentum + scale * DCT(gradient); then every tile's message is taken out of it.

    momentum:     float32 [bands * HEIGHT, across * WIDTH], contiguous
    gradient:     [rows, cols] of any float type (bfloat16 as int16), with strides; the rest counts as zeros
    left_table:   float32 [HEIGHT, HEIGHT] and right_table [WIDTH, WIDTH], see ``get_forward_table``
    positions:    int16 [tiles, TOPK], signs int8 alike: canonical form
    TOPK_PADDED:  the power of two that is not below TOPK
    """
    tile = tl.program_id(0)
    place = _locate(tile, across, across * WIDTH, HEIGHT, WIDTH)[2]
    added = tl.zeros([HEIGHT, WIDTH], tl.float32)
    if HAS_GRADIENT:
        top, left = (tile // across) * HEIGHT, (tile % across) * WIDTH
        if HEIGHT >= 32 and WIDTH >= 32:
            added = _transform_split(
                gradient, left_table, right_table, top, left, rows, cols, row_stride, col_stride,
                HEIGHT, WIDTH,
            )  # fmt: skip
        else:
            added = _transform_whole(
                gradient, left_table, right_table, top, left, rows, cols, row_stride, col_stride,
                HEIGHT, WIDTH,
            )  # fmt: skip
    values = tl.load(momentum + place) * decay + scale * added  # loaded only now: products need the registers
    chosen, ranks = _select(values, TOPK)
    numbers = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    first = tile.to(tl.int64) * TOPK
    tl.store(positions + first + ranks, numbers.to(tl.int16), mask=chosen)
    tl.store(signs + first + ranks, tl.where(values < 0, -1, 1).to(tl.int8), mask=chosen)
    rest = tl.arange(0, TOPK_PADDED)
    is_absent = (rest >= _count(chosen)) & (rest < TOPK)
    tl.store(positions + first + rest, tl.zeros([TOPK_PADDED], tl.int16), mask=is_absent)
    tl.store(signs + first + rest, tl.zeros([TOPK_PADDED], tl.int8), mask=is_absent)
    tl.store(momentum + place, tl.where(chosen, 0.0, values))


# -- from messages to weights --


@triton.jit
def _sum_terms(
    positions, signs, num_terms, left_table, right_table,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The inverse transform as a sum of outer products of rows of the tables."""
    h, w, numbers = tl.arange(0, HEIGHT), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    sums = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for start in range(0, num_terms, BLOCK):
        is_term = start + numbers < num_terms
        position = tl.load(positions + start + numbers, mask=is_term, other=0).to(tl.int32)
        sign = tl.load(signs + start + numbers, mask=is_term, other=0).to(tl.float32)
        left = tl.load(left_table + (position // WIDTH)[None, :] * HEIGHT + h[:, None]) * sign[None, :]
        right = tl.load(right_table + (position % WIDTH)[:, None] * WIDTH + w[None, :])
        sums = tl.dot(left, right, sums, input_precision="ieee")
    return sums


@triton.jit
def _sum_dense(
    positions, signs, num_terms, left_table, right_table,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The inverse transform of the coefficients, which are counted first: one product per side."""
    numbers = tl.arange(0, BLOCK)
    counts = tl.zeros([HEIGHT * WIDTH], tl.int32)
    for start in range(0, num_terms, BLOCK):
        is_term = start + numbers < num_terms
        position = tl.load(positions + start + numbers, mask=is_term, other=0).to(tl.int32)
        sign = tl.load(signs + start + numbers, mask=is_term, other=0)
        counts += tl.histogram(position, HEIGHT * WIDTH, mask=sign > 0)
        counts -= tl.histogram(position, HEIGHT * WIDTH, mask=sign < 0)
    sums = tl.reshape(counts, [HEIGHT, WIDTH]).to(tl.float32)
    by_width = _load_table(right_table, 0, WIDTH, WIDTH)
    by_height = _load_table(left_table, 0, HEIGHT, HEIGHT)
    rows = tl.dot(sums, by_width, input_precision="ieee")
    return tl.dot(tl.trans(by_height), rows, input_precision="ieee")


@triton.jit(do_not_specialize=["rows", "across", "num_terms"], do_not_specialize_on_alignment=MESSAGES)
def move_tiles(
    target,
    source,
    positions,
    signs,
    left_table,
    right_table,
    rows,
    cols,
    across,
    num_terms,
    slope,
    levels,
    unit,
    factor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DENSE: tl.constexpr,
):
    """target = source * factor - unit * units(IDCT(sum of messages)), see ``steps``.

    target, source:  [rows, cols], contiguous, of one float type (bfloat16 as int16); they may be one
    positions:       int16 [tiles, num_terms] and signs int8 alike, of the tiles that cover the matrix
    left_table:      float32 integers [HEIGHT, HEIGHT] and right_table [WIDTH, WIDTH], rows of even
                     frequencies first; all sums must be exact (see ``transform.get_precision``)
    """
    tile = tl.program_id(0)
    first = tile.to(tl.int64) * num_terms
    positions, signs = positions + first, signs + first
    if IS_DENSE:
        sums = _sum_dense(positions, signs, num_terms, left_table, right_table, HEIGHT, WIDTH, BLOCK)
    else:
        sums = _sum_terms(positions, signs, num_terms, left_table, right_table, HEIGHT, WIDTH, BLOCK)
    share = tl.minimum(tl.maximum(sums * slope, -levels), levels)
    units = (share + ROUNDER) - ROUNDER
    up, right, place = _locate(tile, across, cols, HEIGHT, WIDTH)
    is_inside = (up < rows) & (right < cols)
    weights = _as_float32(tl.load(source + place, mask=is_inside, other=0))
    moved = weights * factor - units * unit
    tl.store(target + place, _round_to(moved, target.dtype.element_ty), mask=is_inside)
