"""A leader killed, stopped and cut off in each phase of a round; storage and chain away for a minute each.

Every cell of ``tests.integration.takeovers`` and ``outages``, one after the other on one subnet.
"""

from __future__ import annotations

from pathlib import Path

from scripts.soaking.invariants import convictions
from scripts.soaking.reductions import Reductions
from scripts.soaking.schedule import SERVERS
from tests.integration.outages import play_outage
from tests.integration.support import spec_for, steps_in
from tests.integration.takeovers import EVERY_CELL, Stage
from tests.support.rigging import running

MINERS = 2
OUTAGE_S = 60.0


def play_all(folder: Path, round_s: float, reduce: str) -> str:
    """Play them one after the other, in rounds of about ``round_s``, and print a line for each; why it failed, or an
    empty text. ``reduce``: who adds up; where miners do, what was taken from them is printed as well."""
    with running(folder, spec_for(MINERS, steps_in(round_s), reduce), MINERS, validators=2, cold=True) as rig:
        stage = Stage(rig, [wallet.name for wallet in rig.wallets.miners])
        stage.begin()
        wrong: list[str] = []
        reductions = Reductions(rig.spec)
        for fault, phase in EVERY_CELL:
            cell = stage.play(fault, phase)
            print(cell.told(), flush=True)
            reductions.gather(rig.logs)
            if not cell.held(set(stage.miners)):
                wrong.append(f"{fault}, {phase}")
        for server in SERVERS:
            outage = play_outage(stage, server, OUTAGE_S)
            print(outage.told(), flush=True)
            if not outage.held():
                wrong.append(f"{server} away")
        verified, convicted = rig.verify(), convictions(rig)
        reductions.gather(rig.logs)
    for name, value in reductions.summary(rig.entries, len(convicted)).items():
        print(f"{name}: {value}")
    if convicted:
        wrong.append(f"nobody lies here, and there are {len(convicted)} convictions: {convicted[0]}")
    if untested := reductions.problem(rig.entries):
        wrong.append(untested)
    if verified.returncode:
        return f"brigade run verify: {verified.stderr.strip()}"
    return f"not held: {'; '.join(wrong)}" if wrong else ""
