"""Every fault in every phase: no deadlock, no fork, a run that verifies, conserved mass, no work counted twice."""

from __future__ import annotations

import pytest

from common.units import RoundId
from tests.simulator.support import ROUNDS, check, run_small
from validator.simulator.scenario import KINDS, PHASES, Fault, Moment, Target

MINER_FAULTS = sorted(name for name, kind in KINDS.items() if "miner" in kind.targets and not kind.owners)
VALIDATOR_FAULTS = sorted(name for name, kind in KINDS.items() if "validator" in kind.targets and not kind.standbys)
STORAGE_FAULTS = sorted(name for name, kind in KINDS.items() if "storage" in kind.targets)
CELLS = (
    [("miner", name, phase) for name in MINER_FAULTS for phase in PHASES]
    + [("validator", name, phase) for name in VALIDATOR_FAULTS for phase in PHASES]
    + [("storage", name, phase) for name in STORAGE_FAULTS for phase in PHASES]
    + [("miner", "late by two", phase) for phase in PHASES]
)


def fault_of(role: str, name: str, phase: str) -> Fault:
    """The fault, striking in the second round."""
    kind = KINDS["late" if name == "late by two" else name]
    size = 2.0 if name == "late by two" else kind.size
    target = Target(role, 1.0 if role == "miner" else 0.0)
    long_s = 15.0 if name.startswith("die") else min(kind.duration_s, 60.0)
    return Fault("late" if name == "late by two" else name, target, Moment(RoundId(1), phase), long_s, size)


@pytest.mark.parametrize(("role", "name", "phase"), CELLS)
def test_no_fault_in_any_phase_harms_the_run(role: str, name: str, phase: str) -> None:
    drip_s = 0.0 if name.startswith("late") else 14.0
    world, came = run_small(fault_of(role, name, phase), drip_s=drip_s)
    check(world)
    assert came.rounds_committed + came.rounds_aborted == ROUNDS
    assert came.rounds_committed >= ROUNDS - 1
    assert came.loss_last < came.loss_first
