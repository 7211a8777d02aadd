"""Whom to leave out after the guard refused a whole plan: the held-out loss after each delta alone tells.

In order, each rule only where those before name nobody:

1. whose trial gave no finite loss, or a rise above the usual one (the median by coldkeys, at least 0) by more than the
   tolerance. A step by one delta alone is noisier than by the mean, so where honest ones rise too, a rise alone is
   no proof; and no tolerance is made where others lower the loss;
2. whose delta raises the loss by more than the tolerance, when most do so that none stands out;
3. the half of the coldkeys with the worst figures, or as many of them as leave the quorum: the harm is in the sum, and
   halving finds it in few attempts. Never named as proven: the other half stays in only to keep the round alive.

Invariant: never everybody, unless each one alone does harm; then no plan of them can pass, and the round must abort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.merge.robust import voices, weighted_median


@dataclass(frozen=True)
class Trial:
    """One accepted delta, tried alone."""

    loss: float
    """Held-out loss of the base after this delta alone, in nats per token; may be infinite or NaN."""
    coldkey: str
    tokens: float
    """What it brings to the round's quorum."""


def suspects(
    base_loss: float, trials: Sequence[Trial], rise_nats: float, quorum_tokens: float
) -> tuple[tuple[int, ...], str]:
    """Indices of the trials to leave out of the next attempt, and why. Empty if nobody can be told apart."""
    if not math.isfinite(base_loss):
        return (), f"the base's own held-out loss is {base_loss}: no trial can be compared with it"
    if not trials:
        return (), "nothing was merged"
    rises = [t.loss - base_loss if math.isfinite(t.loss) else math.inf for t in trials]
    usual = max(0.0, weighted_median(np.array(rises), voices([t.coldkey for t in trials])))
    apart = _above(rises, usual + rise_nats)
    if 0 < len(apart) < len(trials):
        return apart, f"alone it raises the held-out loss by more than {rise_nats:.4g} nats above the usual {usual:.4g}"
    harmful = _above(rises, rise_nats)
    if len(harmful) == len(trials):
        return harmful, f"every delta alone raises the held-out loss by more than {rise_nats:.4g} nats"
    if harmful:
        return harmful, f"alone it raises the held-out loss by more than {rise_nats:.4g} nats, and others do not"
    return _worst_half(trials, rises, quorum_tokens)


def _above(rises: Sequence[float], limit: float) -> tuple[int, ...]:
    return tuple(i for i, rise in enumerate(rises) if rise > limit or rise == math.inf)


def _worst_half(trials: Sequence[Trial], rises: Sequence[float], quorum_tokens: float) -> tuple[tuple[int, ...], str]:
    worst: dict[str, float] = {}
    for trial, rise in zip(trials, rises, strict=True):
        worst[trial.coldkey] = max(rise, worst.get(trial.coldkey, -math.inf))
    order = sorted(worst, key=lambda coldkey: (-worst[coldkey], coldkey))
    for named in range(len(order) // 2, 0, -1):
        out = set(order[:named])
        if sum(t.tokens for t in trials if t.coldkey not in out) >= quorum_tokens:
            indices = tuple(i for i, trial in enumerate(trials) if trial.coldkey in out)
            return (
                indices,
                f"no delta alone does harm; left out are the {named} of {len(order)} coldkeys that help least",
            )
    return (), "no delta alone does harm, and without the coldkeys that help least there is no quorum"
