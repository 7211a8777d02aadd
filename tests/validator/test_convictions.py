"""How much is kept against leaders: bounded, and no flood of small faults hides a wrong merge."""

from __future__ import annotations

from pathlib import Path

from common.convictions import MergedWrongly, ReducedWrongly, RejectedFalsely
from common.runlog.reduced import WrongMean
from common.runlog.remerge import Difference
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId
from tests.support.specs import VALIDATOR
from validator.audits.convictions import MOST_IN_A_SLOT, MOST_OF_A_SLOT, MOST_OF_ONE, Accused, Convictions
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


def reduce(convictions: Convictions, miner: int, slot: int, partition: int) -> bool:
    mean = WrongMean(Hotkey(f"miner {miner}"), ShardId(0), partition, SHA, SHA, SHA)
    return convictions.note(Accused(ONE, RoundId(0), slot, SHA), "a lie", ReducedWrongly(mean, None, 0.0))


def test_of_a_slot_with_many_liars_a_bounded_number_is_kept_and_every_liar(tmp_path: Path) -> None:
    convictions, miners, partitions = desk(tmp_path), 256, 2 * MOST_OF_A_SLOT
    for miner in range(miners):
        for partition in range(partitions):
            reduce(convictions, miner, 7, partition)
    kept = list(convictions.everything())
    assert len(kept) <= MOST_IN_A_SLOT + miners
    assert {one.accused for one in kept} == {Hotkey(f"miner {miner}") for miner in range(miners)}
    assert sum(reduce(convictions, 0, 8, partition) for partition in range(partitions)) == MOST_OF_A_SLOT
    assert merge(convictions, ONE, 7), "of another kind"


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
