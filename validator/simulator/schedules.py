"""Random fault schedules: any faults, at any time, on anybody. The seed says all.

Invariant: every schedule leaves the run a chance: storage, leader and machines come back, so that rounds end. Whether
they commit is another matter: all miners may be dead or lie for a while.
"""

from __future__ import annotations

import random

from common.units import RoundId
from validator.simulator.scenario import KINDS, PHASES, Fault, Moment, Target

MOST_FAULTS = 6
LONGEST_S = 40.0


def random_faults(seed: int, miners: int, rounds: int) -> tuple[Fault, ...]:
    """Up to six faults within so many rounds of so many miners."""
    dice = random.Random(seed)
    return tuple(_fault(dice, miners, rounds) for _ in range(dice.randint(1, MOST_FAULTS)))


def _fault(dice: random.Random, miners: int, rounds: int) -> Fault:
    name = dice.choice(sorted(name for name, kind in KINDS.items() if not (kind.standbys or kind.owners)))
    kind = KINDS[name]
    role = dice.choice([target for target in kind.targets if target != "leader"])
    if name == "join":
        role = "miner"
    number = {"miner": float(dice.randrange(miners)), "share": dice.choice((0.2, 0.5)), "group": 0.0}.get(role, 0.0)
    start: float | Moment = dice.uniform(0.0, 25.0 * rounds)
    if dice.random() < 0.5:
        start = Moment(RoundId(dice.randrange(rounds)), dice.choice(PHASES))
    size = {"late": float(dice.randint(1, 2)), "storage_throttle": 0.5, "scale": dice.choice((0.01, 100.0))}
    duration_s = dice.uniform(0.5, LONGEST_S)
    return Fault(name, Target(role, number), start, duration_s, size.get(name, kind.size))
