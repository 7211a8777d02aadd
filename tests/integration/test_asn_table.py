"""A validator with a table of autonomous systems: who is related by it reduces no partition that the leader trusts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from common.spec import ReduceSpec, RunSpec
from tests.integration.support import SLOWED, begun, commits, spec_for
from tests.support.rig import Rig
from tests.support.rigging import running
from validator.up.bootstrap import Wallets

MINERS = ["miner-1", "miner-2"]
DEALT = re.compile(r"round (\d+): 2 partitions go to 2 miners")
BY_MINERS = re.compile(r"round (\d+): 2 of 2 partitions reduced by miners;")
BY_THE_LEADER = re.compile(r"round (\d+): 0 of 2 partitions reduced by miners, 2 here: 2 for related owners;")


def reducing(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
    spec = spec_for(2)(netuid, wallets, data)
    return dataclasses.replace(spec, reduce=ReduceSpec("butterfly", partitions=2, redundancy=2, audits=0))


def test_miners_of_one_autonomous_system_are_related_when_the_table_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "run", reducing, miners=2) as rig:
        part = rig.start_validator()
        for name in MINERS:
            rig.start_miner(name, *SLOWED)
        begun(rig, MINERS)
        rig.until(lambda: rounds(rig, BY_MINERS), "a round that unrelated miners have reduced")
        assert not rounds(rig, DEALT) & rounds(rig, BY_THE_LEADER)
        part.kill()

        trusted, table = rounds(rig, BY_MINERS), tmp_path / "asn.txt"
        table.write_text("127.0.0.0/8 64496\n")
        rig.start_validator("--asn-table", str(table))
        rig.until(lambda: rounds(rig, DEALT) & rounds(rig, BY_THE_LEADER), "a round whose two owners are related")
        commits(rig, 1)
        assert rounds(rig, BY_MINERS) == trusted, "nothing of related owners is taken as they made it"


def rounds(rig: Rig, what: re.Pattern[str]) -> set[str]:
    """Of which the validator's log says it."""
    return {found for path in rig.logs.glob("validator*.log") for found in what.findall(path.read_text())}
