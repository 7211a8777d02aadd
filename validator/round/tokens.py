"""How many tokens of a claim count: ``min(claimed, assigned, time seen × usual rate × what evidence supports)``. Pure.

A miner's own counters prove nothing, and a rate that was capped from its own claims proves nothing either. So what one
member may count for is set by the others: the usual rate, the middle of what earlier rounds merged, times
``UNSUPPORTED``, or times more when the drop in loss of its earlier deltas has shown it (``validator.scoring.policy``).
When the whole round is faster than it was proven to be, the usual rate goes up with its middle member, so a common
change of speed cuts nobody. Invariants, property-tested: the result lies in [0, claimed] and never above the round's
target × slack; a claim can't raise its sender's bound while the majority is honest; one that claims less than
``UNSUPPORTED`` times the usual is never cut, whatever was proven of it before.

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


@dataclass(frozen=True)
class Terms:
    """What holds for all members of a round."""

    target_tokens: int
    members: int
    """How many share the target."""
    longest_s: float
    """Of the training part: the time of a member that nobody watched."""
    slack: float
    usual_rate: float | None = None
    """Tokens per second, see ``round_usual``; None when no rate is proven."""


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


def most_of(terms: Terms) -> Callable[[float | None, float | None], int]:
    """``most_tokens`` for many members under the same terms: from seconds and support."""
    assigned, usual, longest_s, slack = (
        int(terms.target_tokens * terms.slack),
        terms.usual_rate,
        terms.longest_s,
        terms.slack,
    )
    if usual is None:
        share = min(assigned, int(FIRST_SHARE * terms.target_tokens / max(1, terms.members)))
        return lambda _, __: share
    rate = usual

    def most(seconds: float | None, support: float | None) -> int:
        worked_s = longest_s if seconds is None else max(0.0, seconds)
        times = UNSUPPORTED if support is None else max(UNSUPPORTED, support * slack)
        return int(min(assigned, worked_s * rate * times))

    return most


def most_tokens(seen: Seen, support: float | None, terms: Terms) -> int:
    """The most that a member can count for; ``support``: times the usual that evidence shows, None before."""
    return most_of(terms)(seen.seconds, support)


def validated_tokens(claimed: int, seen: Seen, support: float | None, terms: Terms) -> tuple[int, str]:
    """Tokens of a claim that count, and why."""
    most, why = most_tokens(seen, support, terms), _why(seen, support, terms)
    if claimed <= most:
        return max(0, claimed), f"{claimed} tokens, within {most}: {why}"
    return most, f"{most} of {claimed} claimed: {why}"


def _why(seen: Seen, support: float | None, terms: Terms) -> str:
    if terms.usual_rate is None:
        return f"{FIRST_SHARE:g} shares of the target, since no rate is proven yet"
    seconds, times = _seconds(seen, terms), _times(support, terms)
    if seconds * terms.usual_rate * times >= int(terms.target_tokens * terms.slack):
        return f"the round's target × {terms.slack:g}"
    return f"{seconds:.1f} s at {times:.2f} × the usual {terms.usual_rate:.0f} tokens/s"


def _seconds(seen: Seen, terms: Terms) -> float:
    return terms.longest_s if seen.seconds is None else max(0.0, seen.seconds)


def _times(support: float | None, terms: Terms) -> float:
    return max(UNSUPPORTED, (support or 0.0) * terms.slack)


def proven_rates(merged: Mapping[Hotkey, tuple[int, float]], before: Mapping[Hotkey, float]) -> dict[Hotkey, float]:
    """The proven rates after a round, of those whose (validated tokens, watched seconds) it merged."""
    shown = {hotkey: tokens / seconds for hotkey, (tokens, seconds) in merged.items() if tokens > 0 and seconds > 0}
    return {hotkey: max(rate, KEPT * before.get(hotkey, 0.0)) for hotkey, rate in shown.items()}
