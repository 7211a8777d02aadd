"""Traffic per miner where miners reduce the rounds, beside a leader that reduces alone, at 10, 100 and 1,000 miners.

    scripts/bench butterfly [--miners 10 100 1000] [--preset 125m] [--partitions 512] [--density 64] [--rounds 3]
                            [--latency-ms 50 25] [--seed 0]

Each line is a simulated run, half a minute for all on two cores: partitions are placed, read, sent and waited for by
production's rules, over links of 100 Mbit/s up and 500 down. Bytes are those of a miner in a round, median and largest
over all miners and rounds but the first. "reads" and "sends" are the reduction's; "all down" and "all up" are all that
its links move, with its own deltas and the update. "leader: gates" is what it reads to judge the deltas, in any case;
"merge" what it reads then, where its memory can't hold the deltas. "late" and "drawn" are partitions that it computed
itself; "waits" is its time from the plan to the merge, and "dealt" that until the owners were chosen: the block after
the plan has to be final. Request and TCP overhead is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from loguru import logger

from common.codec.container import encoded_size
from common.codec.params import delta_params
from common.defaults import REDUNDANCY
from common.errors import BrigadeError, OperatorError
from common.units import Revision
from miner.means import READS_AT_A_TIME
from validator.means import DRAW
from validator.members import MAX_MEMBERS
from validator.round.deadlines import DEAL_SHARE, REDUCE_SHARE, Deadlines
from validator.simulator.run import run
from validator.simulator.settings import Settings
from validator.simulator.traffic import RoundTraffic
from validator.simulator.world import World

MB = 1e6
KINDS = ("leader", "butterfly")
HEAD = (
    f"{'miners':>6} {'reduce':<9} {'ms':>3} | {'reads MB':>15} | {'sends MB':>17} | {'all down MB':>15} | "
    f"{'all up MB':>17} | {'leader: gates':>13} {'merge MB':>9} | {'by miners':>9} {'late':>4} {'drawn':>5} | "
    f"{'dealt s':>7} {'waits s':>7} | {'run s':>5}"
)


class Measured(World):
    """A world that notes what every link has moved when a round is opened."""

    def __init__(self, settings: Settings) -> None:
        self.marks: list[list[tuple[float, float]]] = []
        super().__init__(settings)

    def phase_began(self, name: str) -> None:
        super().phase_began(name)
        if name in ("open", "end"):
            machines = [miner.machine for miner in self.miners]
            self.marks.append([(m.down.moved_until_now(), m.up.moved_until_now()) for m in machines])

    def moved(self) -> Iterator[tuple[float, float]]:
        """Bytes down and up of each miner in each round but the first."""
        for before, after in zip(self.marks[1:], self.marks[2:], strict=False):
            for (down, up), (later_down, later_up) in zip(before, after, strict=True):
                yield later_down - down, later_up - up


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--miners", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--preset", default="125m")
    parser.add_argument("--partitions", type=int, default=512)
    parser.add_argument("--density", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[50.0, 25.0], help="One way, to the storage.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    logger.remove()
    try:
        table(given)
    except BrigadeError as error:
        print(f"brigade: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def table(given: argparse.Namespace) -> None:
    """All lines, as they come."""
    if given.rounds < 2:
        raise OperatorError("--rounds must be at least 2: the first is not measured")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}: "
        f"{' '.join(('scripts/bench butterfly', *sys.argv[1:]))}"
    )
    world: World | None = None
    for miners in given.miners:
        for kind, latency_ms in [("leader", given.latency_ms[0]), *(("butterfly", ms) for ms in given.latency_ms)]:
            began = time.perf_counter()
            measured = Measured(settings_of(given, miners, kind, latency_ms))
            if world is None:
                print(told_size(given, measured), HEAD, sep="\n")
            run(measured)
            world = measured
            print(line(measured, latency_ms, time.perf_counter() - began), flush=True)
    assert world is not None, "there is at least one number of miners"
    print(told_law(given, world))


def settings_of(given: argparse.Namespace, miners: int, kind: str, latency_ms: float) -> Settings:
    """Of one run. The trained vector is small, the bytes that travel are the preset's."""
    return Settings(
        miners=miners,
        rounds=given.rounds,
        seed=given.seed,
        preset=given.preset,
        density=given.density,
        dimension=1024,
        reduce=kind,
        partitions=given.partitions if kind == "butterfly" else 0,
        storage_latency_s=latency_ms / 1e3,
    )


def line(world: Measured, latency_ms: float, took_s: float) -> str:
    """One run's figures."""
    count, state = len(world.miners), world.records.state
    rounds = [traffic for number, traffic in world.traffic.rounds.items() if number > 0]
    moved = list(world.moved())
    reads = [one.down[i] for one in rounds for i in range(count)]
    sends = [one.up[i] for one in rounds for i in range(count)]
    late = [sum(n for why, n in one.alone.items() if why != DRAW) for one in rounds]
    cells = (
        f"{count:>6} {world.spec.reduce.kind:<9} {latency_ms:>3.0f}",
        f"{pair(reads, 7)}",
        f"{pair(sends, 8)}",
        f"{pair([down for down, _ in moved], 7)}",
        f"{pair([up for _, up in moved], 8)}",
        f"{middle(rounds, 'gates_bytes') / MB:>13.1f} {middle(rounds, 'merge_bytes') / MB:>9.1f}",
        f"{middle(rounds, 'by_miners'):>9.0f} {median(late):>4.0f} "
        f"{median(one.alone.get(DRAW, 0) for one in rounds):>5.0f}",
        f"{middle(rounds, 'dealt_after_s'):>7.0f} {middle(rounds, 'waited_s'):>7.0f}",
        f"{took_s:>5.0f}",
    )
    aborted = f"  {state.rounds_aborted} rounds aborted" if state.rounds_aborted else ""
    return " | ".join(cells) + aborted


def pair(bytes_: list[int] | list[float], width: int) -> str:
    """Median and largest."""
    return f"{median(bytes_) / MB:>{width}.2f} {max(bytes_) / MB:>{width}.2f}"


def middle(rounds: list[RoundTraffic], name: str) -> float:
    """The median of one figure over the rounds."""
    return float(median(getattr(one, name) for one in rounds))


def told_size(given: argparse.Namespace, world: World) -> str:
    """What travels, and what the leader's patience is."""
    values, delta = world.sizes.values, encoded_size(world.sizes.values, delta_params(world.spec.codec, Revision(0)))
    finish_s = Deadlines.of(world.spec).finish_s
    return (
        f"{given.preset}: {values:,} values, a delta of {delta / MB:.2f} MB at density {given.density}, "
        f"{given.partitions} partitions with {REDUNDANCY} owners each.\nOf {finish_s:.0f} s to finish, the leader "
        f"waits {DEAL_SHARE * finish_s:.0f} s at most for the deal, and from it on "
        f"{REDUCE_SHARE * finish_s:.0f} s for the owners; {given.rounds - 1} rounds are measured."
    )


def told_law(given: argparse.Namespace, world: World) -> str:
    """What follows from the protocol, to compare the figures with."""
    how, values = world.spec.reduce, world.sizes.values
    means_mb = 4 * values * how.redundancy / MB
    slots = how.partitions * how.redundancy
    sends = ", ".join(f"{means_mb / miners:,.2f} MB at {miners:,} miners" for miners in given.miners)
    lines = [
        f"reads:  {how.redundancy} deltas and their headers on average, whatever the number of miners is. Up to",
        f"        {slots:,} miners the most is about twice that; of more, some have no duty and the others read more.",
        f"sends:  not constant: it falls. A mean is dense, 4 bytes a value: 4 × {values:,} × {how.redundancy} /",
        f"        miners = {sends}.",
        f"asks:   {slots:,} ranges a miner on average, whatever the number of miners is, and each delta's header; "
        f"{READS_AT_A_TIME} at a",
        "        time.",
        f"leader: reads the means, {4 * values / MB:,.0f} MB less what it computes, in place of the deltas that its",
        "        memory can't hold: fewer bytes than alone only where all deltas together are larger than a mean.",
    ]
    if max(given.miners) > MAX_MEMBERS:
        lines.append(f"A run has at most {MAX_MEMBERS} hotkeys; only the simulator takes in more.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
