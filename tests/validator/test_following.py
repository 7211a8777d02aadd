"""Validators that do not lead: they merge every commit again, score it, keep their reports, and name who lies."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from common.convictions import MergedWrongly, decode_conviction
from common.data.dataset import Dataset
from common.errors import Rejected
from common.identity import KeypairSigner
from common.reports import Report
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.store.readonly import ReadOnlyStore
from common.units import Coldkey, Revision, Sha256
from tests.support.memchain import MemoryWallet
from tests.support.specs import VALIDATOR
from tests.validator.world import AT_ONCE, World, drive
from validator import merging
from validator.audits.recheck import recheck
from validator.process import Parts, Validator, assemble
from validator.reports_place import FolderReports, api_address
from validator.scoring.reports import read_reports

WATCHER = KeypairSigner.from_uri("//Watcher")


def follower(world: World, folder: Path) -> Validator:
    """A validator without write access: it has a reader, and a folder of its own."""
    reports = FolderReports(folder, world.spec.run, WATCHER.hotkey)
    store = ReadOnlyStore(StoreReader(world.store))
    return assemble(dataclasses.replace(may_lead(world), store=store, reports=reports))


def may_lead(world: World) -> Parts:
    """The same with keys of the storage."""
    wallet = MemoryWallet(WATCHER.hotkey, Coldkey("cold-watcher"))
    return Parts(
        spec=world.spec,
        signer=WATCHER,
        store=world.store,
        chain=world.chain_world.port(wallet),
        clock=world.clock,
        evaluator=world.evaluator,
        version="test",
        patience=AT_ONCE,
    )


async def caught_up(validator: Validator, revision: int, most_looks: int = 100) -> None:
    """Let it work until it has looked at this revision."""
    for _ in range(most_looks):
        await validator.driver.step()
        if f"revision {revision} is checked" in validator.board.waiting_for:
            return
    raise AssertionError(validator.board.waiting_for)


def test_a_validator_without_keys_follows_scores_by_itself_and_goes_on_after_a_restart(
    dataset: Dataset, tmp_path: Path
) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        leader = world.validator()
        await drive(world, leader, 2)
        await leader.scorer.drain()
        watching = follower(world, tmp_path)
        await caught_up(watching, 2)
        await watching.scorer.drain()
        assert "never leads" in watching.board.waiting_for
        theirs, ours = read_reports(world.store, world.spec, leader.board.signer.hotkey), _reports(watching)
        assert [report.round for report in ours] == [report.round for report in theirs] == [0, 1]
        assert ours[-1].heldout_loss == theirs[-1].heldout_loss
        merged = [{m.hotkey: m.tokens_merged for m in report.members} for report in (ours[-1], theirs[-1])]
        assert merged[0] == merged[1]
        assert watching.board.standing.averages

        await drive(world, leader, 3)
        again = follower(world, tmp_path)
        assert again.board.standing.reported_round == 1
        await caught_up(again, 3)
        await again.scorer.drain()
        assert [report.round for report in _reports(again)] == [0, 1, 2]

    asyncio.run(go())


def test_its_reports_are_served_by_names_that_hold_their_hash_and_nothing_else_is(
    dataset: Dataset, tmp_path: Path
) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(), 1)
        watching = follower(world, tmp_path)
        await caught_up(watching, 1)
        await watching.scorer.drain()
        index = watching.service.report_index()
        assert index.hotkey == WATCHER.hotkey
        [name] = index.names
        assert watching.service.report(name) == (tmp_path / name).read_bytes()
        for stranger in ("../secret", "0-" + "0" * 64 + ".json", "x", ""):
            with pytest.raises(Rejected, match="object_missing"):
                watching.service.report(stranger)
        with pytest.raises(Rejected, match="in the run's bucket"):
            world.validator().service.report_index()

    asyncio.run(go())
    assert api_address("192.0.2.7", 8091) == "http://192.0.2.7:8091/v1/reports"


def test_a_leader_that_merges_wrongly_is_named_and_nobody_leads_on_from_it(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
    honest = merging.store_revision

    def lying(*facts: object) -> merging.Merged:
        made = honest(*facts)  # type: ignore[arg-type]
        [shard] = made.commit.shards
        wrong = dataclasses.replace(shard, weights_sha256=Sha256("f" * 64))
        return dataclasses.replace(made, commit=dataclasses.replace(made.commit, shards=(wrong,)))

    async def go() -> None:
        await world.begin()
        leader = world.validator()
        await drive(world, leader, 1)
        monkeypatch.setattr(merging, "store_revision", lying)
        await drive(world, leader, 2)
        monkeypatch.setattr(merging, "store_revision", honest)
        watching = follower(world, tmp_path)
        await caught_up(watching, 2)
        await watching.scorer.drain()
        [told] = watching.service.status().convicted
        assert told.startswith(f"{leader.board.signer.hotkey} merged revision 2 wrongly: shard 0 has weights ffff")
        assert [report.round for report in _reports(watching)] == [0]
        assert "not led on from here until the owner" in watching.board.waiting_for
        await watching.convictions.flush()
        again = follower(world, tmp_path)  # it does not have to merge the revision again to know
        assert again.service.status().convicted == [told]
        await again.driver.step()
        assert "not led on from here until the owner" in again.board.waiting_for
        [name] = [name for name in again.service.report_index().names if name.endswith(".conviction.json")]
        conviction = decode_conviction(again.service.report(name), world.spec.run)
        reader = StoreReader(world.store)
        assert recheck(reader, LogReader(reader, world.spec), conviction).proved
        honest_one = dataclasses.replace(conviction, merged_wrongly=MergedWrongly(Revision(1), ()))
        assert not recheck(reader, LogReader(reader, world.spec), honest_one).proved
        # A standby that may lead finds it too, and lets the lease expire.
        standby = assemble(may_lead(world))
        for _ in range(80):
            await standby.driver.step()
            world.clock.advance(0.5)
        assert not standby.board.leadership.leading
        assert "not led on from here" in standby.board.waiting_for
        # One that took over before it had looked gives the lead back once it has.
        hasty = assemble(may_lead(world))
        assert not await hasty.board.leadership.try_lead()
        world.clock.advance(20.0)
        assert await hasty.board.leadership.try_lead()
        while await hasty.driver._following.look(10.0):
            pass
        await hasty.driver.step()
        assert not hasty.board.leadership.leading
        assert world.log().head == 2
        assert world.log().open_round is None

    asyncio.run(go())


def test_who_does_not_lead_sees_a_living_lease_and_does_not_say_that_nobody_leads(
    dataset: Dataset, tmp_path: Path
) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        leader, watching = world.validator(), follower(world, tmp_path)
        seen = []
        for _ in range(12):
            await leader.driver.step()
            await leader.board.leadership.renew()
            await watching.driver.step()
            seen.append(watching.board.leadership.lease_since_s or 0.0)
            world.clock.advance(5.0)
        assert seen == sorted(seen)
        assert seen[-1] > world.clock.monotonic_s() - 10.0

    asyncio.run(go())


def test_what_a_validator_led_itself_is_not_merged_again(dataset: Dataset) -> None:
    world = World(dataset)

    async def go() -> None:
        await world.begin()
        await drive(world, world.validator(), 2)
        again = world.validator()
        assert not await again.driver._following.look(10.0)
        assert again.service.status().convicted == []

    asyncio.run(go())


def _reports(validator: Validator) -> tuple[Report, ...]:
    board = validator.board
    return read_reports(board.reports, board.spec, board.signer.hotkey)
