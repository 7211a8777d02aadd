"""Ten thousand seeds of random fault schedules, and not one violated invariant.

    scripts/bench seeds [--count 10000] [--first 0] [--bucket-every 50]

Each seed is a run of six miners over four rounds under up to six random faults, watched by every invariant of the
fault matrix; one in so many keeps everything in a bucket with real signatures, which `verify` then has to pass. The
exit code is 1 at the first violation, with the seed that shows it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulator.support import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--bucket-every", type=int, default=50)
    given = parser.parse_args()
    began, rounds, codes = time.perf_counter(), Counter[str](), Counter[str]()
    for seed in range(given.first, given.first + given.count):
        bucket = given.bucket_every > 0 and seed % given.bucket_every == 0
        world, came, wrong = run_seed(seed, bucket=bucket)
        if wrong:
            print(f"seed {seed}: {'; '.join(wrong)}", file=sys.stderr)
            return 1
        rounds.update(committed=came.rounds_committed, aborted=came.rounds_aborted)
        codes.update(world.aborts)
        if (seed - given.first + 1) % 500 == 0:
            print(f"{seed - given.first + 1} seeds, {dict(rounds)}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{given.count} seeds without a violation: rounds {dict(rounds)}; aborts by code {dict(codes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
