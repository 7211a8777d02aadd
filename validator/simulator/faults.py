"""The scenario's faults, done to the world when their time comes.

Invariant: a fault that has a duration is undone at its end, even if its target died meanwhile; one that strikes at the
next occasion waits for it, however long that takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from common.units import RoundId
from validator.simulator.miner import Miner
from validator.simulator.misdeeds import LIES, ONE_SHOT
from validator.simulator.scenario import Fault, Moment, Target
from validator.simulator.validator_faults import ValidatorFaults
from validator.simulator.world import World


class Faults:
    """The faults of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(world.settings.seed ^ 0xFA17)
        self._on_validator = ValidatorFaults(world)
        self._waiting: list[tuple[Moment, Fault]] = []
        for fault in world.settings.faults:
            if isinstance(fault.start, Moment):
                self._waiting.append((fault.start, fault))
            else:
                self._at(fault.start, fault)
        world.on_phase = self._on_phase

    def absent_at_first(self) -> set[int]:
        """Miners that join later."""
        joins = (fault for fault in self._world.settings.faults if fault.kind == "join")
        return {miner.index for fault in joins for miner in self._miners(fault.target)}

    def _at(self, at_s: float, fault: Fault) -> None:
        self._world.queue.at(at_s, lambda: self._strike(fault))

    def _on_phase(self, round_id: RoundId, phase: str) -> None:
        due = [fault for moment, fault in self._waiting if moment == Moment(round_id, phase)]
        self._waiting = [(moment, fault) for moment, fault in self._waiting if moment != Moment(round_id, phase)]
        for fault in due:
            # After the look that changed the phase, as whatever comes from outside does.
            self._world.queue.after(0.0, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def _strike(self, fault: Fault) -> None:
        if fault.target.kind in ("validator", "leader"):
            self._on_validator.strike(fault)
        elif fault.target.kind in ("chain", "lease"):
            self._on_validator.strike_all(fault)
        elif fault.target.kind == "storage":
            self._on_storage(fault)
        else:
            for miner in self._miners(fault.target):
                self._on_miner(fault, miner)

    def _miners(self, target: Target) -> list[Miner]:
        miners, groups = self._world.miners, self._world.settings.groups
        if target.kind == "miner":
            return [miner for miner in miners if miner.index == target.number]
        if target.kind == "group":
            return [miner for miner in miners if groups and miner.index % groups == target.number]
        if target.kind == "share":
            count = max(1, round(target.number * len(miners)))
            return sorted(self._dice.sample(miners, count), key=lambda miner: miner.index)
        return list(miners)

    def _over(self, fault: Fault, call: Callable[[], None]) -> None:
        if math.isfinite(fault.duration_s):
            self._world.queue.after(fault.duration_s, call)

    def _on_miner(self, fault: Fault, miner: Miner) -> None:
        kind = fault.kind
        if kind == "die":
            miner.die(disk=True)
            self._over(fault, miner.start)
        elif kind == "join":
            miner.start()
        elif kind == "stop":
            miner.stop()
            self._over(fault, miner.go_on)
        elif kind == "link_cut":
            self._world.post.hear(miner)
            miner.machine.cut()
            self._over(fault, miner.machine.join)
        elif kind == "link_slow":
            self._slow(fault, miner)
        elif kind == "clock":
            miner.clock_off_s = fault.size
            self._over(fault, lambda: setattr(miner, "clock_off_s", 0.0))
        else:
            assert kind in ONE_SHOT | LIES | {"duplicate", "wrong_mean"}
            miner.misdeeds.armed[kind] = fault
            if kind not in ONE_SHOT:
                self._over(fault, lambda: miner.misdeeds.disarm(kind, fault))

    def _slow(self, fault: Fault, miner: Miner) -> None:
        miner.machine.slow(max(fault.size, 1e-6))
        self._over(fault, lambda: miner.machine.slow(1.0))

    def _on_storage(self, fault: Fault) -> None:
        storage = self._world.storage
        if fault.kind == "storage_down":
            storage.down = True
            self._over(fault, lambda: setattr(storage, "down", False))
        elif fault.kind == "storage_throttle":
            storage.refused_share = min(fault.size, 0.99)
            self._over(fault, lambda: setattr(storage, "refused_share", 0.0))
        else:
            assert fault.kind == "storage_slow"
            for miner in self._world.miners:
                self._slow(fault, miner)
