"""How many tokens of a claim count: ``min(claimed, assigned, time seen × usual rate × what evidence supports)``. Pure.

A miner's own counters prove nothing, and a rate that was capped from its own claims proves nothing either. So what one
member may count for is set by the others: the usual rate, the middle of what earlier rounds merged, times
``UNSUPPORTED``, or times more when the drop in loss of its earlier deltas has shown it (``validator.scoring.policy``).
When the whole round is faster than it was proven to be, the usual rate goes up with its middle member, so a common
change of speed cuts nobody. A round that is held open while the storage or the leader is away grows by what the proven
rate brings in that time, for each member as far as it was seen at work: an hour of work is an hour of progress, and an
hour of rest is none. Only of a time in which the leader heard nobody does a member from before have all, a stranger
none.

Invariants, property-tested: the result lies in [0, claimed], never above the round's target × slack plus the held time
at the proven rate, nor above the time seen at the usual one, each times the same; a longer hold never lowers it; no
claim raises its sender's bound while the majority is honest, nor do a majority's claims raise what a hold adds; one
that claims less than ``UNSUPPORTED`` times the usual, in a hold the proven rate, is never cut, whatever was proven of
it before. Until any rate is proven the fair share grows in the proportion of held time to the training deadline.

What this can't do: tell work from a claim inside ``UNSUPPORTED``, nor resist a majority of liars. Pay is bounded more
tightly, by the evidence of the round itself; the real check is executing work again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from common.units import Hotkey

UNSUPPORTED = 2.0
"""Times the usual rate that anybody can count for without evidence, slack included."""
FIRST_SHARE = 1.5
"""Equal shares of the target that a member can count for while nobody's rate is proven."""
KEPT = 0.7
"""Of a proven rate that lives on through a slower round."""


@dataclass(frozen=True)
class Seen:
    """What the leader saw of one member in one round, on its own clock."""

    seconds: float | None
    """Longest time that it can have worked; None when this process can't know."""
    watched: bool
    """Whether ``seconds`` is the time of its work, seen from the beginning, and not just a bound of it."""
    proof_s: float | None = None
    """The same time, not stretched in its favour: what a rate is proven by. None when unknown."""
    worked_s: float = 0.0
    """While ``seconds`` is unknown: the work seen since this process first heard from it."""
    earlier: bool = False
    """Whether it was a member before this process led, by what earlier leaders left."""


@dataclass(frozen=True)
class Terms:
    """What holds for all members of a round."""

    target_tokens: int
    members: int
    """How many share the target."""
    longest_s: float
    """Of the training part as planned: with the held time, the time of a member that nobody watched."""
    slack: float
    usual_rate: float | None = None
    """Tokens per second, see ``round_usual``; None when no rate is proven."""
    proven_rate: float | None = None
    """The same without the round's own speed-up; None when there is none."""
    held_s: float = 0.0
    """Time beyond the planned length in which work for this round can have been done."""
    unheard_s: float = 0.0
    """Of that, what passed before the leading process led: it heard nobody then."""


def usual_rate(rates: Iterable[float]) -> float | None:
    """The middle one of the proven rates, the lower of two; None without any."""
    proven = [rate for rate in rates if rate > 0]
    return median_low(proven) if proven else None


def round_usual(proven: Mapping[Hotkey, float], claimed: Mapping[Hotkey, float]) -> float | None:
    """The usual rate for a round whose members claim these rates: the proven one, times their common speed-up.

    ``claimed`` has everybody at work, 0 for one that claims nothing yet, so that the first to speak isn't the middle.
    The speed-up is the middle of claimed over proven, the lower of two, so a minority can't make one; a slower round
    lowers nothing here, since part of the members may be starved for once.
    """
    usual = usual_rate(proven.values())
    if usual is None:
        return None
    ratios = [claimed[hotkey] / rate for hotkey, rate in proven.items() if rate > 0 and hotkey in claimed]
    return usual * max(1.0, median_low(ratios)) if ratios else usual


def most_of(terms: Terms) -> Callable[[float | None, float | None, float, bool], int]:
    """``most_tokens`` for many members under the same terms: from support and, as in ``Seen``, seconds, work since it
    was first heard, and whether it was there earlier."""
    assigned, usual, slack = terms.target_tokens * terms.slack, terms.usual_rate, terms.slack
    longest_s, held_s = terms.longest_s, terms.held_s
    if usual is None:
        fair = min(assigned, FIRST_SHARE * terms.target_tokens / max(1, terms.members))

        def share(seconds: float | None, support: float | None, seen_s: float, earlier: bool) -> int:
            return int(fair * (1 + _held_s(terms, seconds, seen_s, earlier) / longest_s)) if held_s else int(fair)

        return share
    rate, proven = usual, usual if terms.proven_rate is None else min(usual, terms.proven_rate)

    def most(seconds: float | None, support: float | None, seen_s: float, earlier: bool) -> int:
        own_s = _held_s(terms, seconds, seen_s, earlier) if held_s else 0.0
        worked_s = longest_s + own_s if seconds is None else max(0.0, seconds)
        times = UNSUPPORTED if support is None else max(UNSUPPORTED, support * slack)
        return int(min(assigned + own_s * proven * times, worked_s * rate * times))

    return most


def _held_s(terms: Terms, seconds: float | None, seen_s: float, earlier: bool) -> float:
    """Of the held time what a member can have worked in: no longer than it was seen at work.

    When its beginning is unknown: as long as it was seen at work since it was first heard. The time in which this
    process heard nobody comes on top, whole, for those who were members earlier: nothing tells who rested then.
    """
    if seconds is None:
        seconds = seen_s + (terms.unheard_s if earlier else 0.0)
    return min(terms.held_s, max(0.0, seconds))


def most_tokens(seen: Seen, support: float | None, terms: Terms) -> int:
    """The most that a member can count for; ``support``: times the usual that evidence shows, None before."""
    return most_of(terms)(seen.seconds, support, seen.worked_s, seen.earlier)


def validated_tokens(claimed: int, seen: Seen, support: float | None, terms: Terms) -> tuple[int, str]:
    """Tokens of a claim that count, and why."""
    most, why = most_tokens(seen, support, terms), _why(seen, support, terms)
    if claimed <= most:
        return max(0, claimed), f"{claimed} tokens, within {most}: {why}"
    return most, f"{most} of {claimed} claimed: {why}"


def _why(seen: Seen, support: float | None, terms: Terms) -> str:
    held_s = _held_s(terms, seen.seconds, seen.worked_s, seen.earlier)
    held = f", and {held_s:.0f} s for which it was held open" if held_s > 0 else ""
    if terms.usual_rate is None:
        return f"{FIRST_SHARE:g} shares of the target{held}, since no rate is proven yet"
    worked_s = terms.longest_s + held_s if seen.seconds is None else max(0.0, seen.seconds)
    times = max(UNSUPPORTED, (support or 0.0) * terms.slack)
    if int(worked_s * terms.usual_rate * times) > most_tokens(seen, support, terms):
        return f"the round's target × {terms.slack:g}{held}"
    return f"{worked_s:.1f} s at {times:.2f} × the usual {terms.usual_rate:.0f} tokens/s"


def proven_rates(merged: Mapping[Hotkey, tuple[int, float]], before: Mapping[Hotkey, float]) -> dict[Hotkey, float]:
    """The proven rates after a round, of those whose (validated tokens, watched seconds) it merged."""
    shown = {hotkey: tokens / seconds for hotkey, (tokens, seconds) in merged.items() if tokens > 0 and seconds > 0}
    return {hotkey: max(rate, KEPT * before.get(hotkey, 0.0)) for hotkey, rate in shown.items()}
