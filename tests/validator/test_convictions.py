"""How much is kept against leaders: bounded, and no flood of small faults hides a wrong merge."""

from __future__ import annotations

from pathlib import Path

from common.convictions import MergedWrongly, RejectedFalsely
from common.runlog.remerge import Difference
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId
from tests.support.specs import VALIDATOR
from validator.audits.convictions import MOST_OF_A_SLOT, MOST_OF_ONE, Accused, Convictions
from validator.reports_place import FolderReports

SHA = Sha256("ab" * 32)
ONE, OTHER = Hotkey("one"), Hotkey("other")


def desk(folder: Path) -> Convictions:
    return Convictions(FolderReports(folder, "a-run", VALIDATOR.hotkey), "a-run", VALIDATOR)


def reject(convictions: Convictions, leader: Hotkey, slot: int, line: int = 0) -> bool:
    fault = RejectedFalsely(ShardId(line), Hotkey("m"), RoundId(slot), SHA, "zero_delta")
    return convictions.note(Accused(leader, RoundId(slot), slot, SHA), "it was not empty", fault)


def merge(convictions: Convictions, leader: Hotkey, slot: int) -> bool:
    fault = MergedWrongly(Revision(slot), (Difference(ShardId(0), "weights", SHA, SHA),))
    return convictions.note(Accused(leader, RoundId(slot), slot, SHA), "it merged wrongly", fault)


def test_a_slot_and_a_leader_are_kept_so_much_of(tmp_path: Path) -> None:
    convictions = desk(tmp_path)
    assert sum(reject(convictions, ONE, 7, line) for line in range(2 * MOST_OF_A_SLOT)) == MOST_OF_A_SLOT
    assert not reject(convictions, ONE, 7, 0), "the same fault is taken down once"
    for slot in range(100, 100 + 2 * MOST_OF_ONE):
        reject(convictions, ONE, slot)
    assert len(list(convictions.everything())) == MOST_OF_ONE


def test_a_flood_of_small_faults_hides_no_wrong_merge_and_nobody_elses_fault(tmp_path: Path) -> None:
    convictions = desk(tmp_path)
    for slot in range(2 * MOST_OF_ONE):
        reject(convictions, ONE, slot)
    assert merge(convictions, ONE, 1000)
    assert reject(convictions, OTHER, 1001)
