"""Muon over flat vectors: the hidden matrices' momentum, made orthogonal, is their step; all else is AdamW's.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks": Nesterov momentum of a matrix, then five
quintic Newton–Schulz iterations, which bring its singular values near one. Liu et al. 2025 (arXiv 2502.16982): times
``0.2·sqrt(max(rows, columns))``, the usual root mean square of an AdamW step, so that learning rate and weight decay
mean the same under both. Embedding, head and norm weights are AdamW's, as both papers have it.

The momentum stands where AdamW's first moment would stand, so whoever stores an optimizer's state need not know which
one it is. Matrices of one shape are one batch: a model's cost is a few calls, about ``5·hidden / tokens of the batch``
of the training's own multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from common.model.layout import EMBEDDING, HEAD, Layout, TensorSlot
from common.spec import InnerSpec
from miner.adamw import FlatAdamW, OptimizerState

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: steepest at zero, and for singular values in (0, 1] the result lies in about [0.7, 1.2]."""
USUAL_RMS = 0.2
_TINY = 1e-7


class FlatMuon:
    """Steps on ``weights`` by ``grads``, both flat float32 in the order of ``layout``."""

    def __init__(self, inner: InnerSpec, layout: Layout, weights: Tensor, grads: Tensor) -> None:
        hidden = [slot for slot in layout.slots if is_hidden_matrix(slot)]
        self._inner = inner
        self._rest = FlatAdamW(inner, layout, weights, grads, [s for s in layout.slots if not is_hidden_matrix(s)])
        self._batches = [_batch(slots, weights, grads, self._rest.first) for slots in _by_shape(hidden)]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update with learning rate ``rate``."""
        for batch in self._batches:
            batch.step(rate, 1 - rate * self._inner.weight_decay)
        self._rest.step(rate)

    def state(self) -> OptimizerState:
        """A copy in the host's memory; ``first`` holds the matrices' momentum, ``second`` zeros for them."""
        return self._rest.state()

    def restore(self, state: OptimizerState | None) -> None:
        """Set momentum and moments, or clear them. Raises ValueError for vectors of another length."""
        self._rest.restore(state)


def is_hidden_matrix(slot: TensorSlot) -> bool:
    """Whether Muon trains it."""
    return len(slot.shape) == 2 and slot.name not in (EMBEDDING, HEAD)


def orthogonal(matrices: Tensor) -> Tensor:
    """Near the orthogonal factor of each of ``[batch, rows, columns]``; zero for a zero matrix.

    On a GPU as published, in bfloat16. A CPU has no use for so little precision, but for fewer multiplications.
    """
    if matrices.device.type == "cuda":
        return by_iterates(_unit(matrices.bfloat16())).to(matrices.dtype)
    return by_gram(_unit(matrices))


def by_iterates(x: Tensor) -> Tensor:
    """``x ← a·x + b·(x·xᵀ)·x + c·(x·xᵀ)²·x``, five times, for x of norm one; the smaller side is multiplied out."""
    for _ in range(ITERATIONS):
        x = x @ _factor(x.mT @ x) if _is_tall(x) else _factor(x @ x.mT) @ x
    return x


def by_gram(x: Tensor) -> Tensor:
    """The same in exact arithmetic: each factor is a polynomial of ``x·xᵀ``, so they commute and x is needed twice.

    Squaring first costs half the digits of the small singular values: float32 has enough of them, bfloat16 has not.
    """
    tall = _is_tall(x)
    square = x.mT @ x if tall else x @ x.mT
    total = factor = _factor(square)
    for _ in range(ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _factor(square)
        total = factor @ total
    return x @ total if tall else total @ x


def _factor(square: Tensor) -> Tensor:
    """``a·1 + b·square + c·square²``."""
    first, third, fifth = QUINTIC
    factor = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
    factor.diagonal(dim1=-2, dim2=-1).add_(first)
    return factor


def _unit(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
    return x / (norms + _TINY)


def _is_tall(x: Tensor) -> bool:
    return x.shape[1] > x.shape[2]


@dataclass(frozen=True)
class _Batch:
    """Views of the matrices of one shape."""

    weights: list[Tensor]
    grads: list[Tensor]
    momenta: list[Tensor]

    def step(self, rate: float, kept: float) -> None:
        torch._foreach_mul_(self.momenta, MOMENTUM)
        torch._foreach_add_(self.momenta, self.grads)
        ahead = torch.stack(self.grads) + MOMENTUM * torch.stack(self.momenta)
        size = USUAL_RMS * max(ahead.shape[1:]) ** 0.5
        torch._foreach_mul_(self.weights, kept)
        torch._foreach_add_(self.weights, list(orthogonal(ahead)), alpha=-rate * size)


def _by_shape(slots: Sequence[TensorSlot]) -> list[list[TensorSlot]]:
    def shape(slot: TensorSlot) -> tuple[int, ...]:
        return slot.shape

    return [list(group) for _, group in groupby(sorted(slots, key=shape), key=shape)]


def _batch(slots: Sequence[TensorSlot], *vectors: Tensor) -> _Batch:
    weights, grads, momenta = ([vector[s.start : s.end].view(s.shape) for s in slots] for vector in vectors)
    return _Batch(weights, grads, momenta)
