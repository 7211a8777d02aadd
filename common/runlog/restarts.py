"""How the learning rate rises again after a restart: a rollback, or a cold start. Pure.

A linear factor on top of the schedule, from 0 to 1 over ``rewarm_steps`` inner steps, counted along the lineage from
the restart's revision. It follows from the log, the round whose samples are trained on, and the count of steps, so
whoever executes a miner's steps again comes to the same rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.runlog.state import RunState
from common.units import Revision, RoundId


@dataclass(frozen=True)
class Rewarming:
    """What the rate of the steps on one base and in one round is multiplied by."""

    round: RoundId
    """The first round after the restart: steps on samples of an earlier one are not counted."""
    done: int
    """Steps from the restart's revision to the base."""
    steps: int

    def factor(self, local_step: int) -> float:
        """For the ``local_step``-th step since the restart on this base, from 0."""
        return 1.0 if self.steps == 0 else min(1.0, (self.done + local_step + 1) / self.steps)


def rewarming(state: RunState, round_id: RoundId, base: Revision) -> Rewarming | None:
    """That of the newest restart before ``round_id``; None when there was none."""
    restart = next((one for one in reversed(state.restarts) if one.round <= round_id), None)
    if restart is None:
        return None
    done = state.revisions[base].first_step - state.revisions[restart.revision].first_step
    return Rewarming(restart.round, max(0, done), state.spec.restart.rewarm_steps)
