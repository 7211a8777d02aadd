"""A miner's own times, derived from the run's spec and the notice that it gets, in one place and cross-checked.

The leader says when uploads must be there; when to begin one follows from the measured uplink and the delta's size.
"""

from __future__ import annotations

from dataclasses import dataclass

from common import timeouts
from common.spec import RunSpec

UPLOAD_SAFETY = 1.5
"""An upload is given so many times what it should take."""
BUSY_SHARE = 0.5
"""Largest share of the time that drips may occupy the uplink."""
LEAVE_SHARE = 0.2
"""Part of the notice that is kept for saving and leaving."""
LEAST_LEAVE_S = 2 * timeouts.GOODBYE_S
LEAST_NOTICE_S = 1.5 * LEAST_LEAVE_S
DEFAULT_NOTICE_S = 25.0
"""Shorter than the 30 s that spot machines and container runtimes give."""
MOST_NOTICE_S = 3600.0
AHEAD_ROUNDS = 4
"""Training ahead ends when one miner's unsettled work is so many times what a whole round wants from all."""


@dataclass(frozen=True)
class Deadlines:
    """Raises ValueError for times that contradict each other."""

    drip_s: float
    """0: no drips."""
    submit_s: float
    """Between a round's closing and its freeze, at most."""
    look_s: float
    """Longest pause between two looks at what to do."""
    notice_s: float
    """Between SIGTERM and the end."""

    def __post_init__(self) -> None:
        rules = {
            f"a notice is {LEAST_NOTICE_S:g} to {MOST_NOTICE_S:g} s": LEAST_NOTICE_S <= self.notice_s <= MOST_NOTICE_S,
            "a goodbye must fit into what is kept for leaving": self.leave_s > timeouts.GOODBYE_S,
            "leaving must fit into the notice": self.leave_s < self.notice_s,
            "an upload takes at least as long as predicted": UPLOAD_SAFETY >= 1,
            "drips leave room on the uplink": 0 < BUSY_SHARE < 1,
            "a supervisor's notice must be a notice": LEAST_NOTICE_S <= timeouts.ROLE_STOP_S,
            "looks are regular": 0 < self.look_s < timeouts.ASLEEP_S,
        }
        for broken in (rule for rule, holds in rules.items() if not holds):
            raise ValueError(f"contradictory waiting times: {broken}")

    @classmethod
    def of(cls, spec: RunSpec, notice_s: float) -> Deadlines:
        """Those of a run."""
        look_s = min(spec.round.heartbeat_s, timeouts.STATUS_EVERY_S)
        return cls(spec.round.drip_s, spec.round.submit_deadline_s, look_s, notice_s)

    @property
    def leave_s(self) -> float:
        """Of the notice, what is kept for saving and saying good-bye."""
        return max(LEAST_LEAVE_S, LEAVE_SHARE * self.notice_s)

    @property
    def hurry_s(self) -> float:
        """After the notice began: what is not delivered by then is left to the next start."""
        return self.notice_s - self.leave_s

    def needed_s(self, upload_s: float) -> float:
        """Before the freeze, to be sure that an upload is there."""
        return UPLOAD_SAFETY * upload_s

    def drip_every_s(self, upload_s: float | None) -> float | None:
        """Pause between the beginnings of two drips; None where there are none."""
        if self.drip_s == 0:
            return None
        return max(self.drip_s, (upload_s or 0.0) / BUSY_SHARE)

    def must_be_early(self, upload_s: float) -> bool:
        """Whether an upload takes longer than a round waits after its closing."""
        return self.needed_s(upload_s) > self.submit_s
