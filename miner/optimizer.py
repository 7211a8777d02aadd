"""Which optimizer the run spec asks for: the one place where an optimizer is chosen.

Both keep their state in two flat vectors and a count, so what stores it need not know which one it is.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from common.model.layout import Layout
from common.spec import InnerSpec
from miner.adamw import FlatAdamW, OptimizerState
from miner.muon import FlatMuon


class Optimizer(Protocol):
    """Steps on flat weights by flat gradients, in place."""

    def step(self, rate: float) -> None:
        """One update with learning rate ``rate``."""
        ...

    def state(self) -> OptimizerState:
        """A copy in the host's memory."""
        ...

    def restore(self, state: OptimizerState | None) -> None:
        """Set the state, or clear it. Raises ValueError for vectors of another length."""
        ...


def make_optimizer(inner: InnerSpec, layout: Layout, weights: Tensor, grads: Tensor) -> Optimizer:
    """The run's optimizer on ``weights`` and ``grads``, flat float32 in the order of ``layout``."""
    kinds: dict[str, type[FlatAdamW] | type[FlatMuon]] = {"adamw": FlatAdamW, "muon": FlatMuon}
    return kinds[inner.kind](inner, layout, weights, grads)
