"""When a dead child is started again, and when that is given up. Pure.

A child that lived for ``STEADY_S`` starts with a clean slate. One that was told that its arguments are wrong (exit
code 2) is not started again, since nothing would change; nor is one that ended ``GIVE_UP`` times in a row without
having lived that long.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.5
MOST_S = 15.0
STEADY_S = 20.0
GIVE_UP = 8
USAGE = 2


@dataclass(frozen=True)
class Verdict:
    """What happens to a child that has ended."""

    restart_in_s: float | None
    """None: not again."""
    failures: int
    """Ends in a row, this one included."""
    reason: str


def after_exit(name: str, exit_code: int, lived_s: float, failures: int, last_words: str) -> Verdict:
    """Decide about a child that ended after ``lived_s`` and had failed ``failures`` times in a row before."""
    failures = 1 if lived_s >= STEADY_S else failures + 1
    what = f"{name} {describe_exit(exit_code)}{f' ({last_words})' if last_words else ''}"
    if exit_code == USAGE:
        return Verdict(None, failures, f"{what}; its arguments are wrong, so it is not started again")
    if failures >= GIVE_UP:
        return Verdict(None, failures, f"{what}, the {failures}th time in a row; given up")
    pause_s = min(MOST_S, FIRST_S * 2 ** (failures - 1))
    return Verdict(pause_s, failures, f"{what}; restart in {pause_s:g} s")


def describe_exit(exit_code: int) -> str:
    """``-9`` → ``was killed by signal 9``."""
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with code {exit_code}"
