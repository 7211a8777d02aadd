"""How many tokens of a claim count: ``min(claimed, assigned, time seen × proven rate × slack)``. Pure.

A miner's own counters prove nothing: it chooses them, and the moments at which it sends them. What proves is work that
was merged: a rate is the validated tokens of an earlier round over the time that the receiver watched. Invariants, all
property-tested: the result lies in [0, claimed] and never above the round's target × slack; whatever a miner claims,
what it can count for grows by at most ``GROWTH`` × slack from one round to the next and stays within ``MOST_USUAL``
times the usual; one that nothing is proven of counts as the usual one at most. A machine four times as fast as the
others is honest, and is not cut from its second round on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

from common.units import Hotkey

GROWTH = 1.5
"""A machine may do so many times better than it was proven to: its neighbours leave, its first round began slowly."""
MOST_USUAL = 8.0
"""Times the usual rate that anybody can count for."""
FIRST_USUAL = 4.0
"""Times the usual rate of its round that a first proof can show."""
FIRST_SHARE = 1.5
"""Equal shares of the target that a member can count for while nobody's rate is proven."""
KEPT = 0.9
"""Of a proven rate that lives on through a slower round."""


@dataclass(frozen=True)
class Seen:
    """What the leader saw of one member in one round, on its own clock."""

    seconds: float | None
    """Longest time that it can have worked; None when the leader came later than the round."""
    watched: bool
    """Whether ``seconds`` is the time of its work, seen from the beginning, and not just a bound of it."""


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
    """Of the proven ones, tokens per second; None when there are none."""


def usual_rate(rates: Iterable[float]) -> float | None:
    """The middle one of the proven rates, the lower of two; None without any."""
    proven = [rate for rate in rates if rate > 0]
    return median_low(proven) if proven else None


def most_tokens(seen: Seen, rate: float | None, terms: Terms) -> tuple[int, str]:
    """The most that a member can count for, and why; ``rate`` is its proven one, tokens per second."""
    assigned = int(terms.target_tokens * terms.slack)
    if rate is None and terms.usual_rate is None:
        share = int(FIRST_SHARE * terms.target_tokens / max(1, terms.members))
        return min(assigned, share), f"{FIRST_SHARE:g} shares of the target, since no rate is proven yet"
    seconds = terms.longest_s if seen.seconds is None else max(0.0, seen.seconds)
    allowed, told = _allowed(rate, terms.usual_rate)
    earned = seconds * allowed * terms.slack
    if earned >= assigned:
        return assigned, f"the round's target × {terms.slack:g}"
    return int(earned), f"{seconds:.1f} s at {told} × {terms.slack:g}"


def validated_tokens(claimed: int, seen: Seen, rate: float | None, terms: Terms) -> tuple[int, str]:
    """Tokens of a claim that count, and why."""
    most, why = most_tokens(seen, rate, terms)
    if claimed <= most:
        return max(0, claimed), f"{claimed} tokens, within {most}: {why}"
    return most, f"{most} of {claimed} claimed: {why}"


def proven_rates(merged: Mapping[Hotkey, tuple[int, float]], before: Mapping[Hotkey, float]) -> dict[Hotkey, float]:
    """The proven rates after a round, of those whose (validated tokens, watched seconds) it merged."""
    shown = {hotkey: tokens / seconds for hotkey, (tokens, seconds) in merged.items() if tokens > 0 and seconds > 0}
    usual = usual_rate(shown.values())
    found = {}
    for hotkey, rate in shown.items():
        known = before.get(hotkey)
        if known is None:
            found[hotkey] = rate if usual is None else min(rate, FIRST_USUAL * usual)
        else:
            found[hotkey] = max(rate, KEPT * known)
    return found


def _allowed(rate: float | None, usual: float | None) -> tuple[float, str]:
    if rate is None:
        assert usual is not None
        return usual, f"the usual {usual:.0f} tokens/s, since its own rate is not proven yet"
    if usual is not None and rate * GROWTH > MOST_USUAL * usual:
        return MOST_USUAL * usual, f"{MOST_USUAL:g} × the usual {usual:.0f} tokens/s"
    return rate * GROWTH, f"{GROWTH:g} × its proven {rate:.0f} tokens/s"
