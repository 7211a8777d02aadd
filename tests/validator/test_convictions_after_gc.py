"""A true conviction whose evidence retention has deleted says nothing of anybody any more; one without a cause does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common import keys
from common.convictions import Conviction, sign_conviction
from common.data.dataset import Dataset
from common.runlog.proving import VerifyError
from common.runlog.verify import verify_run
from common.spec import RetentionSpec
from common.store.reader import StoreReader
from tests.runlog.world import copy_store
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import MINERS, UNDRAWN, Twist, lie, owners, until_committed
from tests.validator.test_following import WATCHER, caught_up, follower
from tests.validator.world import World, play
from validator.audits.told import EvidenceDeleted, proved_from_file, told_again
from validator.process import Validator
from validator.run_place import Place

ALL_LIE: dict[int, Twist] = dict.fromkeys(range(MINERS), lie)
KEPT = RetentionSpec(snapshots=2, revisions=2, grace_s=1.0)


class Aged:
    """A run whose first round's owners lied, its convictions, and the bucket before and after retention."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        self.world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey), reduce=UNDRAWN, retention=KEPT)
        self.found: list[Conviction] = []
        asyncio.run(self._go(folder))

    async def _go(self, folder: Path) -> None:
        world = self.world
        await world.begin(MINERS)
        leader = world.validator()
        await until_committed(world, leader, self._turn, 1)
        watching = follower(world, folder)
        await caught_up(watching, 1)
        self.found = list(watching.convictions.everything())
        self.fresh = copy_store(world.store)
        for head in range(2, 12):
            await until_committed(world, leader, self._turn, head)
            world.clock.advance(100_000.0)
            await leader.driver.collector.idle()
            for miner in world.miners:
                miner.beat(leader)

    async def _turn(self, leader: Validator) -> None:
        frozen = leader.board.round is not None and leader.board.round.opened.plan is not None
        acting = owners(self.world, ALL_LIE if leader.board.journal.state.head == 0 else {})
        await (acting(leader) if frozen else play(self.world, leader))


@pytest.fixture(scope="module")
def aged(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Aged:
    return Aged(dataset, tmp_path_factory.mktemp("watcher"))


def place(aged: Aged, store: object = None) -> Place:
    there = store or aged.world.store
    return Place(aged.world.spec.run, StoreReader(there), there, None)  # type: ignore[arg-type]


def in_a_file(folder: Path, conviction: Conviction) -> Path:
    path = folder / "one.conviction.json"
    path.write_bytes(sign_conviction(conviction, WATCHER).encode())
    return path


def test_once_retention_has_passed_nobody_is_accused_and_the_gc_entry_is_named(aged: Aged, tmp_path: Path) -> None:
    assert {one.kind for one in aged.found} == {"reduced_wrongly"}
    fresh = told_again(place(aged, aged.fresh), aged.found, {})
    assert all(line.startswith("convicted, proved again") for line in fresh)

    after = told_again(place(aged), aged.found, {})
    [first] = [entry for entry in aged.world.log().collections if entry.gc.deltas_before == 1]
    for line in after:
        assert line.startswith("unproved now, and nobody's fault: reduced wrongly, round 0")
        assert "deleted by retention: slot " in line
        assert "has to answer" not in line
    assert (
        f"slot {first.seq}, a gc entry that keeps what revisions from {first.gc.floor} on need, names runs/" in after[0]
    )
    with pytest.raises(EvidenceDeleted, match="unproved now, and nobody's fault") as told:
        proved_from_file(place(aged), in_a_file(tmp_path, aged.found[0]))
    assert told.value.exit_code == 3
    assert verify_run(aged.world.store, aged.world.spec.run).deleted > 0


def test_without_a_gc_entry_missing_evidence_stays_its_signers_to_answer_for(aged: Aged, tmp_path: Path) -> None:
    store = copy_store(aged.fresh)
    for info in list(store.list(keys.run_prefix(aged.world.spec.run))):
        if info.key.endswith(".delta"):
            store.delete(info.key)
    lines = told_again(place(aged, store), aged.found, {})
    assert all("not proved, and its signer has to answer for it" in line for line in lines)
    with pytest.raises(VerifyError, match="has to answer for it") as told:
        proved_from_file(place(aged, store), in_a_file(tmp_path, aged.found[0]))
    assert told.value.exit_code == 1


def test_evidence_that_is_gone_and_evidence_that_is_damaged_are_two_things(aged: Aged) -> None:
    """A word or delta that lies there as other bytes was not deleted, whatever an entry names."""
    store = copy_store(aged.world.store)
    first = aged.found[0]
    assert first.reduced_wrongly is not None
    mean = first.reduced_wrongly.mean
    key = keys.reduction_key(aged.world.spec.run, first.round, mean.hotkey, mean.reduction_sha256)
    store.put(key, b"other bytes")
    assert "has to answer for it" in told_again(place(aged, store), [first], {})[0]
