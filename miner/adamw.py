"""AdamW (arXiv 1711.05101) over flat vectors, through PyTorch's fused functional form.

The vectors are cut into runs of neighbouring tensors that decay or don't (vectors such as norm weights do not); each
run is one call's worth of contiguous memory. The optimizer class of PyTorch would do the same arithmetic, bit for bit,
but costs every process two seconds of imports at its first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from common.model.layout import Layout, TensorSlot, Vector
from common.spec import InnerSpec


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer's two vectors, flat, float32 [total], and how many steps they hold; AdamW's are its moments."""

    first: Vector
    second: Vector
    steps: int


@dataclass(frozen=True)
class _Group:
    """Views of the runs that share a weight decay."""

    decay: float
    weights: list[Tensor]
    grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]


class FlatAdamW:
    """Steps on ``weights`` by ``grads``, both flat float32 in the order of ``layout``."""

    def __init__(
        self,
        inner: InnerSpec,
        layout: Layout,
        weights: Tensor,
        grads: Tensor,
        only: Sequence[TensorSlot] | None = None,
    ) -> None:
        """``only``: the tensors to step on, in the layout's order; None means all. The state covers the rest too."""
        self._inner = inner
        self._layout = layout
        self._first, self._second = torch.zeros_like(weights), torch.zeros_like(weights)
        self._steps = 0
        runs = _runs(layout.slots if only is None else only)
        self._groups = [
            _Group(
                decay=inner.weight_decay if decays else 0.0,
                weights=_cut(weights, runs[decays]),
                grads=_cut(grads, runs[decays]),
                first=_cut(self._first, runs[decays]),
                second=_cut(self._second, runs[decays]),
                steps=[torch.zeros((), device=weights.device) for _ in runs[decays]],
            )
            for decays in (True, False)
            if runs[decays]
        ]

    @property
    def first(self) -> Tensor:
        """The first moments, flat, as they are stepped and restored in place."""
        return self._first

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update with learning rate ``rate``."""
        inner = self._inner
        for group in self._groups:
            adamw(
                group.weights,
                group.grads,
                group.first,
                group.second,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                beta1=inner.beta1,
                beta2=inner.beta2,
                lr=rate,
                weight_decay=group.decay,
                eps=inner.eps,
                maximize=False,
            )
        self._steps += 1

    def state(self) -> OptimizerState:
        """A copy in the host's memory."""
        first, second = (moment.cpu().numpy().copy() for moment in (self._first, self._second))
        return OptimizerState(first, second, self._steps)

    def restore(self, state: OptimizerState | None) -> None:
        """Set the moments, or clear them. Raises ValueError for vectors of another length."""
        zeros = np.zeros(self._layout.total, dtype=np.float32)
        first, second, steps = (state.first, state.second, state.steps) if state else (zeros, zeros, 0)
        for target, source in ((self._first, first), (self._second, second)):
            target.copy_(torch.from_numpy(self._layout.check(source).copy()))
        self._steps = steps
        for group in self._groups:
            for counter in group.steps:
                counter.fill_(steps)


def _cut(vector: Tensor, runs: list[tuple[int, int]]) -> list[Tensor]:
    return [vector[start:end] for start, end in runs]


def _runs(slots: Sequence[TensorSlot]) -> dict[bool, list[tuple[int, int]]]:
    """Ranges of neighbouring tensors, by whether they decay."""
    runs: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for slot in slots:
        mine = runs[len(slot.shape) > 1]
        if mine and mine[-1][1] == slot.start:
            mine[-1] = (mine[-1][0], slot.end)
        else:
            mine.append((slot.start, slot.end))
    return runs
