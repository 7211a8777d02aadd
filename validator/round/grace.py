"""How long a closing round that has its quorum still waits for those who are missing. Pure.

The problem. Some have delivered and wait for the commit; others are still on their way. Each missing member brings
``tokens`` if the plan waits for it. What it misses it brings the next plan, where it counts less (``late_weight``), or
loses whole when nothing of it was announced. Meanwhile waiting costs the ``price``, in tokens a second: what those who
wait train, times the share of it that waiting spoils. When will somebody come? For some a prediction exists, for some
not, and any prediction may be wrong, or a lie.

The solution. Waiting until the k-th arrival is worth it when the first k bring more than the wait until then costs; so
the plan waits while that holds for some k. Nothing known of an arrival means: as long again as the wait took so far.
For a single unknown this is the ski rental rule: stop when the wait has cost what it would have brought, which is
never worse than twice what the best hindsight would have paid (Karlin et al. 1988). The same bound holds for all of
them together, whatever the predictions say: when the wait has cost all that the missing can bring, it ends.

Invariants, property-tested: never longer than the hard deadline; a longer wait so far, a higher price, a later arrival
or fewer tokens never make it wait longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validator.round.facts import MemberFacts


@dataclass(frozen=True)
class Grace:
    """How long it is worth waiting from now on, if nothing changes; 0: not at all."""

    wait_s: float
    reason: str


def grace_left(
    missing: Sequence[MemberFacts], price: float, waited_s: float, left_s: float, late_weight: float
) -> Grace:
    """The rest of the grace for ``missing`` after ``waited_s`` of it, ``left_s`` before the hard deadline.

    ``price`` in tokens a second. Members that nobody has heard of yet are waited for: they are silent for good soon,
    or say what they bring.
    """
    if left_s <= 0:
        return Grace(0.0, "the time to submit is over")
    unheard = sum(not member.heard for member in missing)
    if unheard:
        return Grace(left_s, f"{unheard} have not been heard yet")
    arrivals = sorted(_arrivals(missing, waited_s, left_s, late_weight))
    most = sum(brought for _, brought in arrivals)
    # Unknown arrivals move away as the wait goes on, so the wait may end early for them; the caller looks again then.
    rest_s = min(left_s, most / price - waited_s) if price > 0 else left_s
    if most <= 0 or rest_s <= 0:
        return Grace(0.0, f"those missing bring {most:.0f} tokens, and waiting {waited_s:.1f} s has cost as much")
    gained = 0.0
    for arrival_s, brought in arrivals:
        gained += brought
        if gained > arrival_s * price:
            return Grace(rest_s, f"{gained:.0f} tokens within {arrival_s:.1f} s cost {arrival_s * price:.0f}")
    return Grace(0.0, f"waiting for {most:.0f} tokens would cost more")


def _arrivals(
    missing: Sequence[MemberFacts], waited_s: float, left_s: float, late_weight: float
) -> Iterator[tuple[float, float]]:
    """In how many seconds each comes that can come in time, and what it brings beyond what it would bring late."""
    for member in missing:
        arrival_s = waited_s if member.eta_s is None else member.eta_s
        if arrival_s <= left_s:
            yield arrival_s, member.awaited_tokens * (1 - late_weight if member.can_be_late else 1.0)
