"""A leader that no miner reaches: whether it gives the lead up, so that another validator may try. Pure.

Who is cut off from all miners, and not from storage and chain, would keep its lease for ever while rounds abort or wait
for nobody. It can't tell that from a run without miners, and need not: giving the lead up costs nothing where nobody is
there to be served. Whoever takes over and hears nobody either does the same, so the patience doubles each time it was
in vain: a run without miners changes its leader ever more rarely. One heartbeat, and the patience is short again. One
miner that gets through is enough to stay, so a leader that most miners can't reach goes on leading.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common import timeouts

MEMBER_TIMEOUTS = 3
"""So many times the silence after which one miner counts as gone."""
LEAST_S = 4 * timeouts.LEASE_S
MOST_S = 3600.0
AWAY_S = 2 * timeouts.LEASE_S
"""A lease expires in one, and the watchers need a look and the log's slot to take it."""


@dataclass(frozen=True)
class Facts:
    """What bears on it at one look of a leader."""

    now_s: float
    heard_s: float | None
    """When the newest heartbeat of anybody came; None before the first."""
    others: int
    """Validators beside this one that may lead."""
    needs_nobody: bool
    """The round is being merged, or the run has reached its end: no miner is waited for."""


def patience_s(member_timeout_s: float, in_vain: int) -> float:
    """How long a leader waits for a word of anybody, when it has given the lead up ``in_vain`` times in a row."""
    first_s = max(LEAST_S, MEMBER_TIMEOUTS * member_timeout_s)
    return max(first_s, min(MOST_S, first_s * 2.0 ** min(in_vain, 32)))


@dataclass
class Alone:
    """The silence around one process. The event loop owns it."""

    member_timeout_s: float
    in_vain: int = 0
    """Times in a row that the lead was given up without a heartbeat since."""
    _silent_since_s: float | None = field(default=None, repr=False)
    """None while this process does not lead."""
    _looked_s: float = field(default=0.0, repr=False)
    _away_until_s: float | None = field(default=None, repr=False)

    def lonely(self, facts: Facts) -> str:
        """Why the lead has to be given up now; empty while it has not. Called at each look of a leader."""
        now_s, heard_s = facts.now_s, facts.heard_s
        slept = now_s - self._looked_s >= timeouts.ASLEEP_S
        if self._silent_since_s is None or slept or facts.needs_nobody or not facts.others:
            self._silent_since_s = now_s
        self._looked_s = now_s
        if heard_s is not None and heard_s >= self._silent_since_s:
            self._silent_since_s, self.in_vain = heard_s, 0
        silent_s = now_s - self._silent_since_s
        if silent_s < patience_s(self.member_timeout_s, self.in_vain):
            return ""
        self.in_vain += 1
        self._silent_since_s, self._away_until_s = None, now_s + AWAY_S
        return f"no miner was heard for {silent_s:.0f} s: another validator may be within their reach"

    def away(self, now_s: float) -> str:
        """Why this process does not try to lead now; empty when it may. Called at each look of a follower."""
        self._silent_since_s = None
        if self._away_until_s is None or now_s >= self._away_until_s:
            return ""
        return f"no miner was heard here: the lead is left to others for {self._away_until_s - now_s:.0f} s"
