"""The training methods of the study, in plain torch and apart from the product.

Every method sees the same batches, cut over the workers, and has one set of weights that all replicas share.
``Tiles`` is the geometry; ``Distro`` is the family of signs and values that travel every step; ``AdamW`` is
data parallel; ``Local`` takes inner steps (DiLoCo, SparseLoCo).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from study_model import ModelSize, compute_gradients
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """One run. Each method reads its own fields only.

    method: adamw (data parallel), distro (a message every step), local (inner steps, see study_local)
    lr, final: highest rate, and the last as a share of it; warmup is a share of the steps
    sequences: of seq_len tokens in a batch, which is cut over the workers
    clip: L2 norm of a worker's gradient: over all tensors (clip_place global), or of each (tensor)
    weight_decay: of Distro: decoupled, of matrices (decay_place matrices), of all tensors as the product has
        it (all), of matrices at the rate without its scale (unscaled), or in the gradient (gradient)
    text: of the corpora prepared, "" for the one of both books, plays for the benchmark's
    basis: dct (2-D), row (DCT along the width of a matrix only), id (no transform)
    embed_basis, embed_topk, embed_scale: of embedding and head, when they differ
    head_scale, norm_scale: of the head, when it is not embed_scale, and of gains
    precond: of a gradient before momentum: none, rms (whole tensor to RMS 1), adam (divided by the root of
        a private second moment with decay beta2)
    fold: the learning rate is inside momentum
    select: topk, block (the largest of each of topk equal blocks), rotate (topk positions that follow from
        the step: signs alone travel, all workers vote on the same coefficients)
    feedback: what a sent coefficient leaves behind: zero (or the share ``keep`` of it), or quantum: the mean
        sent magnitude of the tile is subtracted
    share: how much of what another worker sent is subtracted from the own momentum, in units of the own
        mean sent magnitude of the tile, with the other's sign
    values: sign, or value (DeMo)
    vote: sum, mean (over the senders that named a coefficient)
    public: decay of a momentum that all replicas keep over the summed messages (nesterov: looked ahead in)
    update: sign, linear, dead (sign, zero below ``dead`` of the tile's RMS), clip (linear, over the tile's
        RMS, clipped at ``clip_at``), fixed (linear, over the RMS that votes which do not meet would have,
        clipped alike); levels: of either side of zero for the last two, 0 for a continuous step
    delay, look: rounds until a message is applied; gradients are taken at the point that the pending messages
        lead to (all), each of the others' counted with probability ``arrive``, or at the weights (none)
    churn, silent: every so many steps a worker, in turn, is a newcomer without momentum, who sends nothing
        for the next ``silent`` steps
    inner, outer_lr, outer_momentum, bits, residual: see study_local.Local
    """

    method: str
    lr: float
    steps: int = 300
    seed: int = 0
    workers: int = 4
    size: str = "small"
    sequences: int = 16
    seq_len: int = 64
    warmup: float = 0.05
    final: float = 0.1
    clip: float = 1.0
    clip_place: str = "global"
    weight_decay: float = 0.0
    decay_place: str = "matrices"
    beta1: float = 0.9
    beta2: float = 0.95
    topk: int = 8
    chunk: int = 64
    decay: float = 0.999
    basis: str = "dct"
    embed_basis: str = ""
    precond: str = "none"
    fold: bool = True
    feedback: str = "zero"
    keep: float = 0.0
    share: float = 0.0
    values: str = "sign"
    vote: str = "sum"
    public: float = 0.0
    nesterov: bool = False
    update: str = "sign"
    dead: float = 0.0
    clip_at: float = 1.0
    levels: int = 0
    text: str = ""
    embed_scale: float = 1.0
    head_scale: float = 0.0
    embed_topk: int = 0
    norm_scale: float = 1.0
    delay: int = 0
    look: str = "all"
    arrive: float = 1.0
    churn: int = 0
    silent: int = 0
    select: str = "topk"
    inner: int = 1
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    bits: int = 32
    residual: float = 0.0


class Method(Protocol):
    """Anything that trains."""

    weights: Weights

    def train(self, step: int, lr: float, tokens: Tensor) -> None:
        """One step on the whole batch [sequences, T + 1]."""
        ...


def compute_lr(setting: Setting, step: int) -> float:
    """Linear warm-up, then half a cosine down to ``final`` times the rate."""
    warmup = max(1, round(setting.warmup * setting.steps))
    if step < warmup:
        return setting.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, setting.steps - warmup)
    share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return setting.lr * (setting.final + (1.0 - setting.final) * share)


def clip_gradients(gradients: Weights, limit: float, place: str = "global") -> None:
    """Bound every worker's L2 norm over all tensors, or that of each tensor, in place."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()])
    norms = (squares if place == "tensor" else squares.sum(0).expand_as(squares)).sqrt()
    for g, factor in zip(gradients.values(), (limit / norms).clamp(max=1.0), strict=True):
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1)))


def get_decay(setting: Setting, name: str, w: Tensor) -> float:
    """What the learning rate is multiplied with to say which share of a tensor decays at a move."""
    place = setting.decay_place
    if place == "gradient" or (w.dim() == 1 and place != "all"):
        return 0.0
    return setting.weight_decay * (1.0 if place == "unscaled" else get_scale(setting, name))


def get_scale(setting: Setting, name: str) -> float:
    """What the learning rate of a tensor is multiplied with."""
    if name == "head" and setting.head_scale:
        return setting.head_scale
    if name in ("embed", "head"):
        return setting.embed_scale
    return setting.norm_scale if "norm" in name else 1.0


class AdamW:
    """Data parallel: one gradient of the whole batch."""

    def __init__(self, setting: Setting, size: ModelSize, weights: Weights) -> None:
        self.weights, self._setting, self._size = weights, setting, size
        self._m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._v = {name: torch.zeros_like(w) for name, w in weights.items()}

    def train(self, step: int, lr: float, tokens: Tensor) -> None:
        """One step."""
        s = self._setting
        single = {name: w[None] for name, w in self.weights.items()}
        gradients = compute_gradients(single, tokens[None], self._size)
        clip_gradients(gradients, s.clip)
        c1, c2 = 1 - s.beta1 ** (step + 1), 1 - s.beta2 ** (step + 1)
        for name, w in self.weights.items():
            g, m, v = gradients[name][0], self._m[name], self._v[name]
            m.lerp_(g, 1 - s.beta1)
            v.lerp_(g.square(), 1 - s.beta2)
            rate = lr * get_scale(s, name)
            w.mul_(1 - rate * s.weight_decay)
            w.addcdiv_(m, (v / c2).sqrt_().add_(1e-8), value=-rate / c1)


def make_dct(n: int) -> Tensor:
    """Orthonormal DCT-II [frequency, position]."""
    k, i = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64)[None]
    table = torch.cos(math.pi * (i + 0.5) * k / n) * math.sqrt(2 / n)
    table[0] /= math.sqrt(2)
    return table.float()


class Tiles:
    """Matrices of one group as tiles [..., tiles, h * w] in their basis, and back.

    All of the group's tensors are cut alike; vectors are laid end to end in rows of the chunk's width.
    """

    def __init__(self, shapes: dict[str, torch.Size], chunk: int, basis: str, topk: int) -> None:
        self.shapes, self._basis = shapes, basis
        first = next(iter(shapes.values()))
        self.is_pool = len(first) == 1
        total = sum(shape.numel() for shape in shapes.values())
        self.h, self.w = (total // chunk, chunk) if self.is_pool else (chunk, chunk)
        self.num = total // (self.h * self.w)
        self.topk = max(1, topk * self.h * self.w // (chunk * chunk))
        self._left = make_dct(self.h) if basis == "dct" else None
        self._right = make_dct(self.w) if basis in ("dct", "row") else None
        sizes = [shape.numel() // (self.h * self.w) for shape in shapes.values()]
        self.tensor_of_tile = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def gather(self, tensors: Weights) -> Tensor:
        """[lead, tiles, h, w] of tensors [lead, ...]."""
        if self.is_pool:
            return torch.cat([tensors[name] for name in self.shapes], 1).view(-1, 1, self.h, self.w)
        parts = []
        for name, shape in self.shapes.items():
            x = tensors[name].reshape(-1, shape[0] // self.h, self.h, shape[1] // self.w, self.w)
            parts.append(x.transpose(2, 3).reshape(x.shape[0], -1, self.h, self.w))
        return torch.cat(parts, 1)

    def scatter(self, tiles: Tensor) -> Weights:
        """Tensors [lead, ...] of tiles [lead, tiles, h, w]."""
        result, start = {}, 0
        if self.is_pool:
            flat = tiles.reshape(tiles.shape[0], -1)
            sizes = [shape.numel() for shape in self.shapes.values()]
            return dict(zip(self.shapes, flat.split(sizes, 1), strict=True))
        for name, (rows, cols) in self.shapes.items():
            num = rows * cols // (self.h * self.w)
            x = tiles[:, start : start + num].view(-1, rows // self.h, cols // self.w, self.h, self.w)
            result[name] = x.transpose(2, 3).reshape(-1, rows, cols)
            start += num
        return result

    def transform(self, x: Tensor) -> Tensor:
        """[..., h, w] to coefficients."""
        x = x if self._right is None else x @ self._right.T
        return x if self._left is None else self._left @ x

    def invert(self, x: Tensor) -> Tensor:
        """Coefficients [..., h, w] to elements."""
        x = x if self._right is None else x @ self._right
        return x if self._left is None else self._left.T @ x


def make_groups(setting: Setting, weights: Weights) -> list[Tiles]:
    """Matrices, embedding and head when they differ, and vectors."""
    is_own = bool(setting.embed_basis or setting.embed_topk)
    kinds: dict[str, dict[str, torch.Size]] = {"matrix": {}, "embed": {}, "vector": {}}
    for name, w in weights.items():
        is_embed = name in ("embed", "head") and is_own
        kinds["vector" if w.dim() == 1 else "embed" if is_embed else "matrix"][name] = w.shape
    basis, embed_basis = setting.basis, setting.embed_basis or setting.basis
    groups = [Tiles(kinds["matrix"], setting.chunk, basis, setting.topk)]
    if is_own:
        topk = setting.embed_topk or setting.topk
        groups.append(Tiles(kinds["embed"], setting.chunk, embed_basis, topk))
    vector_basis = "id" if basis == "id" else "dct"
    return [*groups, Tiles(kinds["vector"], 64, vector_basis, setting.topk * 4096 // setting.chunk**2)]


class Distro:
    """Workers with private momenta; what they send, and what everybody makes of it, by setting."""

    def __init__(self, setting: Setting, size: ModelSize, weights: Weights) -> None:
        self.weights, self._setting, self._size = weights, setting, size
        self._groups = make_groups(setting, weights)
        self._momenta = [torch.zeros(setting.workers, g.num, g.h * g.w) for g in self._groups]
        self._public = [torch.zeros(g.num, g.h * g.w) for g in self._groups]
        self._magnitudes = [torch.zeros(setting.workers, g.num, 1) for g in self._groups]
        self._seconds: Weights = {}
        self._step = 0
        self._silent = torch.zeros(setting.workers, dtype=torch.int64)
        fixed = torch.Generator().manual_seed(5)
        self._orders = [torch.randperm(g.h * g.w, generator=fixed) for g in self._groups]
        self._queue: list[list[Tensor]] = []  # messages [W, tiles, h * w] by group, of rounds not applied
        self._generator = torch.Generator().manual_seed(77 + setting.seed)

    def train(self, step: int, lr: float, tokens: Tensor) -> None:
        """One round."""
        s, self._step = self._setting, step
        gradients = compute_gradients(
            self._foresee(lr), tokens.view(s.workers, -1, tokens.shape[1]), self._size
        )
        if s.decay_place == "gradient":
            for name, w in self.weights.items():
                if w.dim() > 1:
                    gradients[name].add_(w, alpha=s.weight_decay)
        clip_gradients(gradients, s.clip, s.clip_place)
        self._precondition(gradients, step)
        self._replace_workers(step)
        self._queue.append([self._send(i, gradients, lr) for i in range(len(self._groups))])
        if len(self._queue) > s.delay or step + 1 == s.steps:
            while self._queue and (len(self._queue) > s.delay or step + 1 == s.steps):
                self._apply(self._queue.pop(0), lr)

    def _replace_workers(self, step: int) -> None:
        """Whose turn it is begins anew; ``_silent`` counts down the steps without a message."""
        s = self._setting
        self._silent.sub_(1).clamp_(min=0)
        if s.churn and step and step % s.churn == 0:
            newcomer = step // s.churn % s.workers
            self._silent[newcomer] = s.silent
            for momentum in self._momenta:
                momentum[newcomer] = 0.0

    def _precondition(self, gradients: Weights, step: int) -> None:
        s = self._setting
        for name, g in gradients.items():
            if s.precond == "rms" and g.dim() > 2:
                g.div_(g.square().mean((1, 2), keepdim=True).sqrt().add_(1e-12))
            elif s.precond == "adam":
                v = self._seconds.setdefault(name, torch.zeros_like(g))
                v.lerp_(g.square(), 1 - s.beta2)
                g.div_((v / (1 - s.beta2 ** (step + 1))).sqrt_().add_(1e-8))

    def _send(self, index: int, gradients: Weights, lr: float) -> Tensor:
        """Update the momenta of a group and return the messages, dense: [W, tiles, h * w]."""
        s, group, momentum = self._setting, self._groups[index], self._momenta[index]
        g = group.transform(group.gather(gradients)).flatten(2)
        momentum.mul_(s.decay).add_(g, alpha=lr if s.fold else 1.0)
        positions = self._select(momentum.abs(), index)
        values = momentum.gather(2, positions)
        signs = values.sign()
        self._magnitudes[index] = values.abs().mean(2, keepdim=True)
        if s.feedback == "quantum":
            left = values - signs * values.abs().mean(2, keepdim=True)
        else:
            left = values * s.keep
        is_sent = (self._silent == 0).view(-1, 1, 1)
        momentum.scatter_(2, positions, torch.where(is_sent, left, values))
        sent = values / (lr if s.fold else 1.0) if s.values == "value" else signs
        return torch.zeros_like(momentum).scatter_(2, positions, sent * is_sent)

    def _select(self, magnitude: Tensor, index: int) -> Tensor:
        group = self._groups[index]
        if self._setting.select == "rotate":
            part = torch.arange(self._step * group.topk, (self._step + 1) * group.topk)
            order = self._orders[index]
            return order[part % len(order)].expand(*magnitude.shape[:2], -1)
        if self._setting.select == "block":
            blocks = magnitude.view(*magnitude.shape[:2], group.topk, -1)
            starts = torch.arange(group.topk) * blocks.shape[3]
            return blocks.argmax(3) + starts
        return magnitude.topk(group.topk, dim=2).indices

    def _combine(self, messages: Tensor) -> Tensor:
        total = messages.sum(0)
        if self._setting.vote == "mean":
            total /= (messages != 0).sum(0).clamp(min=1)
        return total

    def _make_update(self, index: int, total: Tensor, num: Tensor) -> Weights:
        """The step that coefficients [lead, tiles, h * w] mean, of about RMS 1, by name [lead, ...].

        num: messages in each sum, [lead]
        """
        s, group = self._setting, self._groups[index]
        x = group.invert(total.view(*total.shape[:2], group.h, group.w))
        if s.update == "sign":
            return group.scatter(x.sign())
        # the RMS that one message of signs has, for n that do not meet: sqrt(n * topk / elements)
        if s.update == "linear":
            x = x * (group.h * group.w / group.topk / num.double()).sqrt().float().view(-1, 1, 1, 1)
        elif s.update == "fixed":
            rms = (num.double() * group.topk / (group.h * group.w)).sqrt().float()
            x = self._clip(x / rms.view(-1, 1, 1, 1))
        else:
            rms = x.square().mean((2, 3), keepdim=True).sqrt().add_(1e-12)
            x = x.sign() * (x.abs() > s.dead * rms) if s.update == "dead" else self._clip(x / rms)
        return group.scatter(x)

    def _clip(self, x: Tensor) -> Tensor:
        """x over clip_at within -1 .. 1, in so many levels of either side."""
        x = (x / self._setting.clip_at).clamp_(-1, 1)
        levels = self._setting.levels
        return x if levels == 0 else (x * levels).round_() / levels

    def _apply(self, messages: list[Tensor], lr: float, is_ahead: bool = False) -> None:
        s = self._setting
        for i, message in enumerate(messages):
            total = self._combine(message)
            if s.share and not is_ahead:
                others = message.sum(0) - message
                self._momenta[i].sub_(others * self._magnitudes[i], alpha=s.share)
            if s.public:
                self._public[i].mul_(s.public).add_(total)
                total = self._public[i] + total / s.public if s.nesterov else self._public[i]
            num = message.flatten(1).any(1).sum().clamp(min=1)
            for name, move in self._make_update(i, total[None], num[None]).items():
                w = self.weights[name]
                if s.weight_decay and not is_ahead:
                    w.mul_(1 - lr * get_decay(s, name, w))
                w.sub_(move[0], alpha=lr * get_scale(s, name))

    def _foresee(self, lr: float) -> Weights:
        """Where every worker takes its gradient: [W, ...], views of the weights when nothing is pending."""
        s = self._setting
        shared = {name: w.expand(s.workers, *w.shape) for name, w in self.weights.items()}
        if not self._queue or s.look == "none":
            return shared
        if s.look == "all" and s.arrive == 1.0:
            shared = {name: w.clone() for name, w in self.weights.items()}
            public = [x.clone() for x in self._public]
            true, self.weights = self.weights, shared
            for messages in self._queue:
                self._apply(messages, lr, is_ahead=True)
            self.weights, self._public = true, public
            return {name: w.expand(s.workers, *w.shape) for name, w in shared.items()}
        mask = torch.rand(len(self._queue), s.workers, s.workers, generator=self._generator) < s.arrive
        mask |= torch.eye(s.workers, dtype=torch.bool)
        result = {name: w.clone() for name, w in shared.items()}
        for known, messages in zip(mask.float(), self._queue, strict=True):
            for i, message in enumerate(messages):
                total = torch.einsum("vw,wtx->vtx", known, message)
                for name, move in self._make_update(i, total, known.sum(1)).items():
                    result[name].sub_(move, alpha=lr * get_scale(s, name))
        return result
