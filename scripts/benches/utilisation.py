"""How much of their time miners train, in a real run whose links make a delta take a tenth of a round.

Storage, chain, validator and miners are processes of their own; each miner has a link of its own, a token bucket for
each direction in front of storage and validator, the way down five times the way up. The first rounds go over free
links: they tell how long a round takes, and the links are set so that one delta fills them for a tenth of it. Then the
rounds count. Utilisation is time training over time online, by the miners' own counters in the validator's reports,
as in ``summary.json``. The same is done with ``overlap`` on and off.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from common.codec.container import encoded_size
from common.codec.params import delta_params
from common.defaults import Choices, make_spec
from common.model.layout import run_layouts
from common.reports import MemberReport, Report
from common.runlog.entries import RevisionCommitted
from common.spec import RunSpec
from common.units import Hotkey, Revision, ShardId, format_bytes
from tests.support.rig import Rig
from tests.support.rigging import MakeSpec, dataset_of, running
from validator.scoring.reports import read_reports
from validator.up.bootstrap import Wallets

GOAL = 0.97
SHARE = 0.1
"""Of a round, that one delta takes."""
DOWN = 5.0
"""The way down over the way up: 500 over 100 Mbit/s."""
FREE_ROUNDS = 4
"""Before the links get slow: the first begins with start-up, the others are timed."""


@dataclass(frozen=True)
class Setting:
    """What is run."""

    miners: int
    steps: int
    density: int
    rounds: int
    overlap: bool


@dataclass(frozen=True)
class Time:
    """Of one miner, in seconds."""

    training_s: float
    online_s: float

    @property
    def share(self) -> float:
        return self.training_s / self.online_s if self.online_s else 0.0

    def __add__(self, other: Time) -> Time:
        return Time(self.training_s + other.training_s, self.online_s + other.online_s)


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    setting: Setting
    round_s: float
    """Median from commit to commit with slow links."""
    free_round_s: float
    delta_bytes: int
    up_bps: float
    whole: dict[str, Time]
    """With start-up."""
    steady: dict[str, Time]
    """In the rounds with slow links."""
    tokens_merged: int
    tokens_late: int
    load: float


def main(arguments: Sequence[str]) -> int:
    """``scripts/bench utilisation``."""
    parser = argparse.ArgumentParser("scripts/bench utilisation", description=__doc__)
    parser.add_argument("--miners", type=int, default=2, help="one thread each; they share the machine's cores")
    parser.add_argument("--steps", type=int, default=120, help="inner steps of a miner in a round")
    parser.add_argument("--density", type=int, default=512, help="values sent of each 4,096")
    parser.add_argument("--rounds", type=int, default=12, help="rounds with slow links")
    parser.add_argument("--modes", nargs="+", choices=("overlap", "wait"), default=["overlap", "wait"])
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    asked = parser.parse_args(arguments)
    print(_machine(arguments))
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        for mode in asked.modes:
            setting = Setting(asked.miners, asked.steps, asked.density, asked.rounds, mode == "overlap")
            outcomes.append(measure((asked.keep or Path(scratch)) / mode, setting))
            print("\n".join(told(outcomes[-1])), flush=True)
    return 0 if all(overall(one.steady) >= GOAL for one in outcomes if one.setting.overlap) else 1


def measure(folder: Path, setting: Setting) -> Outcome:
    """One run from nothing."""
    with running(folder, _spec(setting), setting.miners) as rig:
        names = [f"miner-{number}" for number in range(1, setting.miners + 1)]
        rig.start_validator()
        for name in names:
            rig.start_miner(name)
        rig.until(lambda: rig.head >= FREE_ROUNDS, f"{FREE_ROUNDS} rounds over free links")
        free_s = statistics.median(_gaps(rig)[1:])
        size = _delta_bytes(rig.spec)
        up_bps = 8 * size / (SHARE * free_s)
        for name in names:
            link = rig.lines[name].link
            link.up.rate_bps, link.down.rate_bps = up_bps, DOWN * up_bps
        first = rig.head + 1  # the round that was open when the links got slow does not count
        rig.until(lambda: rig.head >= first + setting.rounds, f"{setting.rounds} rounds over slow links")
        reports = rig.until(lambda: _reports_upto(rig, Revision(first + setting.rounds)), "the last report")
        return _outcome(rig, setting, reports, first, free_s, size, up_bps)


def _outcome(
    rig: Rig, setting: Setting, reports: Sequence[Report], first: int, free_s: float, size: int, up_bps: float
) -> Outcome:
    slow = [report for report in reports if report.committed and report.revision > first]
    members = [member for plan in rig.committed() for ones in plan.members.values() for member in ones]
    accepted = [member for member in members if member.decision == "accepted"]
    return Outcome(
        setting=setting,
        round_s=statistics.median(_gaps(rig)[first:]),
        free_round_s=free_s,
        delta_bytes=size,
        up_bps=up_bps,
        whole=_times(rig, reports),
        steady=_times(rig, slow),
        tokens_merged=sum(member.tokens for member in accepted),
        tokens_late=_late_tokens(rig),
        load=os.getloadavg()[0],
    )


def _late_tokens(rig: Rig) -> int:
    """Tokens that came a revision late."""
    late = 0
    for plan in rig.committed():
        taken = [member for ones in plan.members.values() for member in ones if member.decision == "accepted"]
        late += sum(member.tokens for member in taken if member.base_revision != plan.frozen.base_revision)
    return late


def _reports_upto(rig: Rig, revision: Revision) -> tuple[Report, ...] | None:
    validator = rig.wallets.validator.hotkey_ss58
    reports = read_reports(rig.store, rig.spec, validator) if rig.head >= revision else ()
    return tuple(report for report in reports if report.revision <= revision) if _has(reports, revision) else None


def _has(reports: Sequence[Report], revision: Revision) -> bool:
    return any(report.committed and report.revision == revision for report in reports)


def _times(rig: Rig, reports: Sequence[Report]) -> dict[str, Time]:
    names: dict[Hotkey, str] = {wallet.hotkey_ss58: wallet.name for wallet in rig.wallets.miners}
    times = {name: Time(0.0, 0.0) for name in names.values()}
    for member in (member for report in reports for member in report.members):
        times[names[member.hotkey]] += _time(member)
    return times


def _time(member: MemberReport) -> Time:
    return Time(member.training_ms / 1000, member.online_ms / 1000)


def overall(times: dict[str, Time]) -> float:
    """Of all miners together."""
    return sum(times.values(), Time(0.0, 0.0)).share


def _gaps(rig: Rig) -> list[float]:
    """Seconds from commit to commit, by the leader's clock."""
    at_ms = [entry.at_ms for entry in rig.entries if isinstance(entry.data, RevisionCommitted)]
    return [(later - earlier) / 1000 for earlier, later in itertools.pairwise(at_ms)]


def _delta_bytes(spec: RunSpec) -> int:
    count = run_layouts(spec.model, spec.num_shards)[ShardId(0)].total
    return encoded_size(count, delta_params(spec.codec, FREE_ROUNDS))


def _spec(setting: Setting) -> MakeSpec:
    def make(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
        dataset, tokenizer = dataset_of(data)
        choices = Choices("utilisation", "nano", 0, setting.miners, density=setting.density, steps=setting.steps)
        owner, validators = wallets.owner.hotkey_ss58, [wallets.validator.hotkey_ss58]
        spec = make_spec(choices, netuid, owner, validators, dataset, tokenizer)
        return dataclasses.replace(spec, round=dataclasses.replace(spec.round, overlap=setting.overlap))

    return make


def told(outcome: Outcome) -> list[str]:
    """For people, and the raw figures as one line of JSON."""
    setting = outcome.setting
    lines = [
        f"overlap {'on' if setting.overlap else 'off'}: {setting.rounds} rounds of {outcome.round_s:.1f} s (median) "
        f"over links of {outcome.up_bps / 1e6:.3f} Mbit/s up and {DOWN * outcome.up_bps / 1e6:.3f} down; a delta of "
        f"{format_bytes(outcome.delta_bytes)} takes {8 * outcome.delta_bytes / outcome.up_bps:.2f} s; rounds over free "
        f"links took {outcome.free_round_s:.1f} s",
        f"  {'':10} {'training':>10} {'online':>10} {'utilisation':>12}   {'with start-up':>13}",
    ]
    for name, time_ in outcome.steady.items():
        lines.append(_row(name, time_, outcome.whole[name]))
    nothing = Time(0.0, 0.0)
    lines.append(_row("all", sum(outcome.steady.values(), nothing), sum(outcome.whole.values(), nothing)))
    late = f", {outcome.tokens_late:,} of them late" if outcome.tokens_late else ""
    lines.append(f"  {outcome.tokens_merged:,} tokens merged{late}; load average at the end {outcome.load:.1f}")
    lines.append(json.dumps(dataclasses.asdict(outcome)))
    return lines


def _row(name: str, steady: Time, whole: Time) -> str:
    times = f"{steady.training_s:>9.1f}s {steady.online_s:>9.1f}s {steady.share:>12.2%}"
    return f"  {name:10} {times}   {whole.share:>13.2%}"


def _machine(arguments: Sequence[str]) -> str:
    cpu = next((x.split(":")[1] for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?")
    versions = f"Python {platform.python_version()}, PyTorch {version('torch')}, Brigade {version('brigade')}"
    command = " ".join(["scripts/bench utilisation", *arguments])
    cores = len(os.sched_getaffinity(0))
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{command}\n{at}; {cpu.strip()}, {cores} cores; {versions}; goal {GOAL:.0%} with overlap"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
