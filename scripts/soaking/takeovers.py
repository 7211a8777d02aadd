"""A leader killed, stopped and cut off in each phase of a round: every cell of ``tests.integration.takeovers``."""

from __future__ import annotations

from pathlib import Path

from tests.integration.support import spec_for
from tests.integration.takeovers import EVERY_CELL, Stage
from tests.support.rigging import running

MINERS = 2


def play_all(folder: Path) -> str:
    """Play them one after the other and print a line for each; why it failed, or an empty text."""
    with running(folder, spec_for(MINERS), MINERS, validators=2) as rig:
        stage = Stage(rig, [wallet.name for wallet in rig.wallets.miners])
        stage.begin()
        wrong: list[str] = []
        for fault, phase in EVERY_CELL:
            cell = stage.play(fault, phase)
            print(cell.told(), flush=True)
            if not cell.held(set(stage.miners)):
                wrong.append(f"{fault}, {phase}")
        verified = rig.verify()
    if verified.returncode:
        return f"brigade run verify: {verified.stderr.strip()}"
    return f"not held: {'; '.join(wrong)}" if wrong else ""
