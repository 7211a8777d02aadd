"""Where an inner step stands in the run, and the learning rate there. Pure.

Schedules follow the run's global step, so a miner that joins late or restarts trains at everybody's rate. They count
by the base revision: an aborted round does not advance them.
"""

from __future__ import annotations

import math

from common.spec import InnerSpec
from common.units import Revision


def global_step(inner: InnerSpec, base_revision: Revision, local_step: int) -> int:
    """Global step of the ``local_step``-th inner step on ``base_revision``, at most the next revision's first."""
    return inner.first_step(base_revision) + min(local_step, inner.steps_of(base_revision))


def learning_rate(inner: InnerSpec, step: int) -> float:
    """Linear warm-up, then cosine from ``lr`` to ``min_lr_ratio × lr`` at ``decay_steps``, then flat."""
    if step < inner.warmup_steps:
        return inner.lr * (step + 1) / inner.warmup_steps
    done = min(1.0, (step - inner.warmup_steps) / (inner.decay_steps - inner.warmup_steps))
    lowest = inner.min_lr_ratio
    return inner.lr * (lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * done)))
