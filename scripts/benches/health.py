"""What the health detectors cost a validator: CPU seconds a round at 64, 256 and 1,000 miners, three kinds of rates."""

from __future__ import annotations

import argparse
import json
import platform
import time
from statistics import median

from common.units import RoundId
from validator.health.monitor import Monitor
from validator.simulator.health.fleet import Fleet, Rates

FLEETS = (64, 256, 1_000)
EACH = 8
"""Machines of a provider."""
ROUNDS = 60


def cost(miners: int, rounds: int) -> dict[str, float]:
    """CPU of the rounds in which there is a past to compare with."""
    fleet = Fleet(miners, max(1, miners // EACH))
    rates, places, monitor = Rates(fleet, (), 0), fleet.places(), Monitor()
    took = []
    for number in range(rounds):
        evidence = rates.evidence(RoundId(number))
        began_s = time.process_time()
        monitor.look(evidence, places)
        took.append(time.process_time() - began_s)
    used = took[rounds // 2 :]
    return {"miners": miners, "median_s": round(median(used), 4), "most_s": round(max(used), 4)}


def main() -> None:
    """Print one line of JSON for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each fleet, of which half are measured")
    parsed = parser.parse_args()
    print(json.dumps({"machine": platform.machine(), "python": platform.python_version(), "rounds": parsed.rounds}))
    for miners in FLEETS:
        print(json.dumps(cost(miners, parsed.rounds)), flush=True)


if __name__ == "__main__":
    main()
