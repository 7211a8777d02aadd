"""What the scenario does to validators, to the chain and to the lease.

Invariant: a fault is undone on the validator that it has met, whoever leads then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from validator.simulator.leader import Leader
from validator.simulator.process import EVERYWHERE
from validator.simulator.scenario import Fault
from validator.simulator.world import World

_CUTS = {
    "link_cut": EVERYWHERE,
    "storage_cut": frozenset({"storage"}),
    "chain_cut": frozenset({"chain"}),
    "miners_cut": frozenset({"miners"}),
}
DELETE_EVERY_S = 1.0


class ValidatorFaults:
    """The faults of one simulation that are not the miners' or the storage's."""

    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, fault: Fault) -> None:
        """On one validator."""
        world = self._world
        leader = world.leader if fault.target.kind == "leader" else world.validators[int(fault.target.number)]
        if fault.kind == "die":
            leader.die()
            self._over(fault, leader.start)
        elif fault.kind == "stop":
            leader.stop()
            self._over(fault, leader.go_on)
        elif fault.kind in _CUTS:
            leader.cut |= _CUTS[fault.kind]
            self._over(fault, lambda: leader.join(_CUTS[fault.kind]))
        elif fault.kind in ("clock", "fast_clock"):
            self._clock(fault, leader)
        elif fault.kind == "stale_entry":
            world.roster.force_entry(leader.number)
            world.observe()
        else:
            assert fault.kind == "lost_reply"
            world.lose_log_reply()

    def strike_all(self, fault: Fault) -> None:
        """On the chain, or on the lease."""
        world = self._world
        if fault.kind == "chain_down":
            world.chain_down = True
            self._over(fault, lambda: setattr(world, "chain_down", False))
        elif fault.kind == "lease_split":
            world.roster.split = True
            self._over(fault, lambda: setattr(world.roster, "split", False))
        else:
            assert fault.kind == "lease_deleted"
            self._delete_until(world.queue.now_s + fault.duration_s)

    def _over(self, fault: Fault, call: Callable[[], None]) -> None:
        if math.isfinite(fault.duration_s):
            self._world.queue.after(fault.duration_s, call)

    def _clock(self, fault: Fault, leader: Leader) -> None:
        if fault.kind == "fast_clock":
            leader.clock.run_at(fault.size)
            self._over(fault, lambda: leader.clock.run_at(1.0))
            return
        leader.clock.off_s += fault.size
        self._over(fault, lambda: self._turn_back(leader, fault.size))

    def _turn_back(self, leader: Leader, by_s: float) -> None:
        leader.clock.off_s -= by_s

    def _delete_until(self, until_s: float) -> None:
        self._world.roster.delete_lease()
        if self._world.queue.now_s < until_s:
            self._world.queue.after(DELETE_EVERY_S, lambda: self._delete_until(until_s))
