"""From facts to the doctor's report: one line a check, what to do, and whether the machine would keep up. Pure.

Invariants: every check has its line, also when it could not be made; a line that is not ``ok`` says what to do, or
which other line it waits for; a figure that was not measured is never told as if it were.
"""

from __future__ import annotations

import math

from common.units import Revision, format_duration
from miner.doctor.facts import Facts, Head, Link, Speed
from miner.doctor.machinelines import machine_lines, shard_of, speed_line
from miner.doctor.needs import RoundNeed, round_need
from miner.doctor.pace import Answer, Rates, answer
from miner.doctor.report import Level, Line, Report
from miner.doctor.runlines import needed, run_lines
from miner.policy import EARLY_SHARE


def judge(facts: Facts) -> Report:
    """The report."""
    need = None if facts.spec is None else round_need(facts.spec, shard_of(facts.spec), head_of(facts))
    found = _answer(facts, need)
    lines = [*machine_lines(facts), *run_lines(facts, need, found), speed_line(facts)]
    slow = [line.check for line in lines if line.level is Level.SLOW]
    return Report((*lines, _answer_line(facts, found, slow)), found)


def head_of(facts: Facts) -> Revision:
    """The revision that deltas would be made on; 0, whose are the largest, where the log is not known."""
    head = facts.remote.head if facts.remote else None
    return head.revision if isinstance(head, Head) else Revision(0)


def _answer(facts: Facts, need: RoundNeed | None) -> Answer | None:
    if need is None or not isinstance(facts.speed, Speed):
        return None
    remote = facts.remote
    head = remote.head if remote else None
    down = remote.downlink if remote else None
    return answer(
        need,
        Rates(
            tokens_per_s=facts.speed.tokens_per_s,
            encode_s=facts.speed.encode_s,
            up_bps=remote.uplink.rate_bps if remote and remote.uplink else None,
            down_bps=down.rate_bps if isinstance(down, Link) and not down.at_least else None,
            round_s=head.round_s if isinstance(head, Head) else None,
        ),
    )


def _answer_line(facts: Facts, found: Answer | None, slow: list[str]) -> Line:
    """The last one. ``slow``: the checks that rule it out by themselves."""
    if found is not None and not found.keeps_up:
        return Line("answer", Level.SLOW, f"this machine would not keep up: {'; '.join(found.reasons)}")
    if slow:
        return Line("answer", Level.SLOW, f"this machine would not keep up: see {' and '.join(slow)}")
    if found is None:
        return Line("answer", Level.SKIPPED, "whether this machine would keep up is not known: see the lines above")
    known = facts.remote is not None and isinstance(facts.remote.head, Head) and facts.remote.head.round_s is not None
    long = f"{format_duration(found.round_s)}{' as they are now' if known else ''}"
    text = (
        f"this machine would keep up, with {found.tokens:,} tokens a round of {long}: "
        f"{found.share:.0%} of what is planned for a miner{_unless(facts, found)}"
    )
    if found.share < EARLY_SHARE:
        return Line("answer", Level.WARN, text, "it would earn little")
    return Line("answer", Level.OK, text)


def _unless(facts: Facts, found: Answer) -> str:
    """What was not measured and has to hold."""
    remote = facts.remote
    down = remote.downlink if remote else None
    open_links = []
    if remote is None or remote.uplink is None:
        wanted_bps = found.wanted_up_bps if math.isfinite(found.wanted_up_bps) else found.least_up_bps
        open_links.append(f"{needed(wanted_bps)} up")
    if not isinstance(down, Link) or (down.at_least and down.rate_bps < found.least_down_bps):
        open_links.append(f"{needed(found.least_down_bps)} down")
    return f", if its line, which was not measured, has {' and '.join(open_links)}" if open_links else ""
