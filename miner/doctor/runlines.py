"""The lines about the run and the way there: clock, wallet, chain, seat, run, validator, links. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from common import timeouts
from common.units import format_bytes, format_duration, format_rate
from miner.doctor.facts import ClockReading, Facts, Link, Remote, Trouble, ValidatorSeen
from miner.doctor.needs import RoundNeed
from miner.doctor.pace import Answer
from miner.doctor.report import Level, Line

NTP_DO = "set it by NTP (timedatectl set-ntp true)"
LINE_DO = "take a machine with a faster line"


def run_lines(facts: Facts, need: RoundNeed | None, found: Answer | None) -> Iterator[Line]:
    remote = facts.remote
    if remote is None:
        return
    yield _clock_line(remote.clocks)
    if isinstance(remote.wallet, Trouble):
        yield Line("wallet", Level.FAIL, remote.wallet.text, remote.wallet.do)
    else:
        yield Line("wallet", Level.OK, f"hotkey {remote.wallet}")
    if isinstance(remote.chain, Trouble):
        yield Line("chain", Level.FAIL, remote.chain.text, remote.chain.do)
    else:
        yield Line("chain", Level.OK, f"answers at block {remote.chain}")
    yield _seat_line(remote)
    yield _run_line(facts, remote)
    yield _validator_line(remote)
    yield _downlink_line(remote, found)
    yield _uplink_line(remote, need, found)


def _clock_line(clocks: tuple[ClockReading, ...]) -> Line:
    """Wrong is our clock when all others say so; when they differ among themselves, one of theirs may be."""
    if not clocks:
        return Line("clock", Level.SKIPPED, "not compared: nobody answered who could tell the time")
    off = {clock.source: max(0.0, abs(clock.ahead_s) - clock.grain_s) for clock in clocks}
    said = ", ".join(f"{_ahead(clock.ahead_s)} {clock.source}'s" for clock in clocks)
    if min(off.values()) > timeouts.MAX_CLOCK_SKEW_S:
        return Line("clock", Level.FAIL, f"this machine's clock is {said}", NTP_DO)
    if max(off.values()) > timeouts.MAX_CLOCK_SKEW_S:
        return Line(
            "clock", Level.WARN, f"this machine's clock is {said}: one of these is wrong", "compare with another"
        )
    if min(off.values()) > timeouts.NONCE_MAX_AGE_S:
        return Line("clock", Level.WARN, f"this machine's clock is {said}", NTP_DO)
    return Line("clock", Level.OK, f"this machine's clock is {said}")


def _ahead(seconds: float) -> str:
    return f"{format_duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'}"


def _seat_line(remote: Remote) -> Line:
    if isinstance(remote.seat, Trouble):
        return Line("seat", Level.FAIL, remote.seat.text, remote.seat.do)
    if remote.seat is None:
        return Line("seat", Level.SKIPPED, "not checked: see wallet and chain")
    return Line("seat", Level.OK, f"uid {remote.seat}")


def _run_line(facts: Facts, remote: Remote) -> Line:
    if isinstance(remote.run, Trouble):
        return Line("run", Level.FAIL, remote.run.text, remote.run.do)
    if remote.run is None:
        return Line("run", Level.SKIPPED, "not looked for: see chain")
    if isinstance(remote.head, Trouble):
        return Line("run", Level.FAIL, f"{remote.run}, but its log can't be read: {remote.head.text}", remote.head.do)
    if facts.spec is None or remote.head is None:
        return Line("run", Level.SKIPPED, f"at {remote.run}, not read")
    text = f"{facts.spec.run} at {remote.run}, spec as committed, revision {remote.head.revision}"
    if facts.spec.num_shards != 1:
        text = f"{facts.spec.run} is split into {facts.spec.num_shards} shards, and miners train whole models only"
        return Line("run", Level.FAIL, text, "update brigade, or choose another subnet")
    if not remote.head.whole:
        return Line("run", Level.WARN, f"{text} at least: its log is too long to be read to the end here")
    if remote.head.paused:
        return Line(
            "run", Level.WARN, f"{text}; it is paused ({remote.head.paused})", "wait for its owner to resume it"
        )
    return Line("run", Level.OK, text)


def _validator_line(remote: Remote) -> Line:
    seen = remote.validators
    if not seen:
        return Line("validator", Level.SKIPPED, "not checked: see run and seat")
    good = [one for one in seen if one.trouble is None]
    if not good:
        trouble = seen[0].trouble
        assert trouble is not None
        return Line("validator", Level.FAIL, f"none of {len(seen)} answers: {trouble.text}", trouble.do)
    leader = next((one for one in seen if one.leads), None)
    if leader is not None and leader.trouble is not None:
        text = f"{_called(good[0])} answers, but the leader does not: {leader.trouble.text}"
        return Line("validator", Level.WARN, text, leader.trouble.do)
    return Line("validator", Level.OK, f"{len(good)} of {len(seen)} answer and sign what they say, {_called(good[0])}")


def _called(one: ValidatorSeen) -> str:
    return f"{'the leader ' if one.leads else ''}{one.hotkey} at {one.url}"


def _downlink_line(remote: Remote, found: Answer | None) -> Line:
    link = remote.downlink
    if link is None:
        return Line("downlink", Level.SKIPPED, "not measured: see run")
    if isinstance(link, Trouble):
        return Line("downlink", Level.FAIL, f"the run's storage can't be read: {link.text}", link.do)
    text = f"{_measured(link)} from the run's storage"
    if found is not None and not link.at_least and link.rate_bps < found.least_down_bps:
        return Line("downlink", Level.SLOW, f"{text}, {needed(found.least_down_bps)} are needed", LINE_DO)
    return Line("downlink", Level.OK, text)


def _uplink_line(remote: Remote, need: RoundNeed | None, found: Answer | None) -> Line:
    wants = ""
    if need is not None and found is not None:
        wants = f"; a delta of {format_bytes(need.delta_bytes)} wants {needed(found.wanted_up_bps)}"
    if remote.uplink is None and not _could_send(remote):
        return Line("uplink", Level.SKIPPED, f"not measured: see seat and validator{wants}")
    if remote.uplink is None:
        text = f"not measured: validators of this version offer nothing to upload for a try{wants}"
        return Line("uplink", Level.WARN, text, "compare with what the machine's offer promises" if wants else "")
    text = f"{_measured(remote.uplink)} to the run's storage{wants}"
    if found is not None and remote.uplink.rate_bps < found.least_up_bps:
        return Line("uplink", Level.SLOW, f"{text}, {needed(found.least_up_bps)} are needed", LINE_DO)
    return Line("uplink", Level.OK, text)


def _could_send(remote: Remote) -> bool:
    """Whether there is somebody to ask for an upload, and a right to ask."""
    return isinstance(remote.seat, int) and any(one.trouble is None for one in remote.validators)


def _measured(link: Link) -> str:
    more = "at least " if link.at_least else ""
    return f"{more}{format_rate(link.rate_bps)} ({format_bytes(link.size_bytes)} in {format_duration(link.seconds)})"


def needed(rate_bps: float) -> str:
    """A rate that a link has to have, in words."""
    return format_rate(rate_bps) if math.isfinite(rate_bps) else "more than any line has"
