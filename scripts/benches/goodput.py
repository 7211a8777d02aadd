"""Goodput on availability traces: Brigade beside a synchronous and an 80 % quorum round, on the same machines.

    scripts/bench goodput DIRECTORY [--miners 64] [--rounds N] [--json FILE]

Every trace of the directory is simulated with the 1b preset's sizes at 100 Mbit/s up and 500 down. A trace of one
machine is rotated from miner to miner, so a run as long as trace / miners sees every moment of it once; so long each
run is made, but no longer than so many rounds. The last columns are the losses by cause.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from common.errors import BrigadeError, OperatorError
from validator.simulator.baselines import quorum_round, synchronous
from validator.simulator.run import Outcome, simulate
from validator.simulator.settings import Settings
from validator.simulator.tally import CAUSES
from validator.simulator.traces import Trace, read_trace

MOST_ROUNDS = 1500
"""Of one run; a trace of many machines is longer, and its beginning must do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--miners", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        rows = table(given.directory, given.miners, given.rounds, given.seed)
    except BrigadeError as error:
        print(f"brigade: {error}", file=sys.stderr)
        return error.exit_code
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2))
    return 0


def table(directory: Path, miners: int, rounds: int, seed: int) -> list[dict[str, object]]:
    """One row for each trace, and their means; printed as they come."""
    files = sorted(directory.glob("*.json"))
    if not files:
        raise OperatorError(f"there is no trace (*.json) in {directory}")
    causes = " ".join(f"{cause:>8}" for cause in CAUSES)
    print(f"{'trace':<34} rounds  hours | goodput   util   surv |   sync  80 % q | {causes}")
    rows = []
    for file in files:
        rows.append(row(file.stem, read_trace(file), miners, rounds, seed))
        print(line(rows[-1]), flush=True)
    figures = [key for key, value in rows[0].items() if isinstance(value, float)]
    mean: dict[str, object] = {key: sum(float(str(r[key])) for r in rows) / len(rows) for key in figures}
    rows.append({"trace": "mean", **mean})
    print(line(rows[-1]))
    return rows


def row(name: str, trace: Trace, miners: int, rounds: int, seed: int) -> dict[str, object]:
    """Brigade and the two others on one trace."""
    began = time.perf_counter()
    turns = miners if trace.counts.max() <= 1 else 1
    settings = Settings(
        miners=miners,
        rounds=rounds or MOST_ROUNDS,
        until_s=trace.length_s / turns,
        seed=seed,
        trace=trace,
        preset="1b",
        dimension=1024,
    )
    came: Outcome = simulate(settings)
    span_s = came.seconds
    return {
        "trace": name.replace("availability__", "").replace("preemption__", "").replace("_v100_1", ""),
        "rounds": came.rounds_committed + came.rounds_aborted,
        "hours": round(span_s / 3600, 1),
        "goodput": came.goodput,
        "utilisation": came.utilisation,
        "survival": came.survival,
        "synchronous": synchronous(settings, span_s).goodput,
        "quorum": quorum_round(settings, span_s).goodput,
        **came.lost_by_cause,
        "bench_s": time.perf_counter() - began,
        "outcome": asdict(came),
    }


def line(figures: dict[str, object]) -> str:
    """One row for people."""

    def share(key: str, width: int) -> str:
        return f"{float(str(figures[key])):>{width}.2%}"

    size = f"{figures.get('rounds', ''):>6} {float(str(figures['hours'])):>6.1f}"
    head = f"{str(figures['trace'])[:34]:<34} {size} | "
    head += " ".join((share("goodput", 7), share("utilisation", 6), share("survival", 6)))
    lost = " ".join(share(cause, 8) for cause in CAUSES)
    return f"{head} | {share('synchronous', 6)} {share('quorum', 7)} | {lost}"


if __name__ == "__main__":
    sys.exit(main())
