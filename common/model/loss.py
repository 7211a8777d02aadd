"""Losses for validation and scoring: mean nats per token, without gradients.

Per-sequence losses are float64 and come from the same batches in the same order for any two models that are compared,
so that differences can be taken in pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Forward = Callable[[Tensor], Tensor]
Losses = npt.NDArray[np.float64]


def training_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats: logits [batch, time, vocab], targets int64 [batch, time]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def evaluate(
    model: Forward, samples: npt.NDArray[np.int64], batch_size: int, device: torch.device | str = "cpu"
) -> Losses:
    """Mean loss of every sequence: samples int64 [n, time + 1] → float64 [n]. ``model`` maps tokens to logits."""
    found: list[Losses] = []
    with torch.no_grad():
        for start in range(0, len(samples), batch_size):
            tokens = torch.from_numpy(samples[start : start + batch_size]).to(device)
            found.append(_sequence_losses(model(tokens[:, :-1]), tokens[:, 1:]))
    return np.concatenate(found) if found else np.empty(0, dtype=np.float64)


def _sequence_losses(logits: Tensor, targets: Tensor) -> Losses:
    each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    losses: Losses = each.view(targets.shape).double().mean(dim=1).cpu().numpy()
    return losses
