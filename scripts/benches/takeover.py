"""What it costs when the leader is killed, stopped or cut off: by phase, in time and in the round's tokens.

    scripts/bench takeover [--seeds 2]

Small simulated runs with three validators and a bucket in memory: rounds of a minute, so that the time of a lease is a
quarter of one. `verify` has to pass each run. The loss is what machines could have trained and nobody will ever merge,
beyond the same seed's without the fault, as a share of the round's target.
"""

from __future__ import annotations

import argparse
import platform
import sys

from loguru import logger

from tests.simulator.takeovers import lost_tokens, moment, run_many, undisturbed
from validator.simulator.run import outcome
from validator.simulator.scenario import PHASES, Fault, Target

KINDS = ("die", "stop", "link_cut", "storage_cut", "miners_cut", "chain_cut")
AWAY_S = 25.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    logger.remove()
    print(f"{platform.machine()}, Python {platform.python_version()}: {' '.join(sys.argv)}")
    print("fault        phase    seed  term  committed  without a leader  goodput  without fault  lost of the round")
    for kind in KINDS:
        for phase in PHASES:
            for seed in range(1, given.seeds + 1):
                print(line(kind, phase, seed), flush=True)
    return 0


def line(kind: str, phase: str, seed: int) -> str:
    """One run beside the one without the fault."""
    usual, without = undisturbed(seed)
    at_s = moment(usual, phase, 0.5)
    world = run_many(Fault(kind, Target("leader"), at_s, AWAY_S, 1.0), seed=seed)
    came, state = outcome(world), world.records.state
    since_s = [v.leads_since_s for v in world.validators if v.leads_since_s > at_s]
    away = f"{min(since_s) - at_s:.1f} s" if since_s else "-"
    lost = (lost_tokens(came) - lost_tokens(without)) / world.spec.round.target_tokens
    return (
        f"{kind:<12} {phase:<8} {seed:>4} {state.term:>5} {came.rounds_committed:>10} {away:>17} "
        f"{came.goodput:>8.2%} {without.goodput:>14.2%} {lost:>18.2%}"
    )


if __name__ == "__main__":
    sys.exit(main())
