"""A plan that leaves out a receipted submission: the miner complains, a follower convicts, anybody checks it again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.chain.port import Endpoint
from common.convictions import Conviction, MergedWrongly, decode_conviction, sign_conviction
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.records import open_receipt, sign_manifest, sign_receipt
from common.runlog.reader import LogReader
from common.store.reader import StoreReader
from common.units import Coldkey, Hotkey, Revision
from common.wire import ComplaintRequest
from miner.client import ValidatorClient
from miner.complaints import Complaints
from miner.context import Context
from miner.delta import Submission
from miner.follow import catch_up
from miner.receipts import Receipts
from tests.support.memchain import MemoryWallet
from tests.support.specs import VALIDATOR
from tests.validator.test_following import WATCHER, caught_up, follower
from tests.validator.world import Made, Miner, World, play
from validator import effects
from validator.api.security import RateLimited
from validator.audits.recheck import recheck
from validator.gating import Entrant
from validator.process import Validator


class Victim:
    """A miner's own desk for receipts and complaints, beside a scripted miner."""

    def __init__(self, world: World, miner: Miner, folder: Path) -> None:
        self.world, self.miner, self.folder = world, miner, folder
        self.log = LogReader(StoreReader(world.store), world.spec)
        self.view = catch_up(self.log, miner.signer.hotkey, None)
        self.receipts = Receipts(folder, world.spec.run, lambda: self.view.state)

    async def hand_in(self, leader: Validator) -> None:
        """Announce, keep the receipt, put the bytes, and say so."""
        made = self.miner.make(self.world.log())
        reply = await self.miner.announce(leader, made)
        receipt, record = open_receipt(reply.receipt, self.world.spec.run)
        self.read()
        await self.receipts.keep(self.sent(made), receipt, record)
        self.miner.put(reply, made)
        assert (await self.miner.complete(leader, made)).accepted
        self.miner.submitted = made.manifest.round

    def sent(self, made: Made) -> Submission:
        return Submission(made.manifest, sign_manifest(made.manifest, self.miner.signer), made.body)

    def read(self) -> None:
        self.view = catch_up(self.log, self.miner.signer.hotkey, self.view)

    def complaints(self, connect: Callable[[str, Hotkey], ValidatorClient]) -> Complaints:
        world, signer = self.world, self.miner.signer
        unused = cast(Any, None)
        context = Context(world.spec, signer, world.clock, asyncio.sleep, lambda: 0.5, *[unused] * 4, Path(), "s", 0.0)
        chain = world.chain_world.port(MemoryWallet(signer.hotkey, Coldkey("any")))
        return Complaints(context, self.receipts, lambda: self.view, chain, allow_private=True, connect=connect)


async def begin(dataset: Dataset) -> World:
    world = World(dataset, validators=(VALIDATOR.hotkey, WATCHER.hotkey))
    await world.begin()
    await world._register(WATCHER)
    coldkey = Coldkey(f"cold-{WATCHER.hotkey[:10]}")
    await world.chain_world.port(MemoryWallet(WATCHER.hotkey, coldkey)).serve(
        world.spec.netuid, Endpoint("192.0.2.9", 80)
    )
    return world


def leave_out(hotkey: Hotkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's plans name nothing of this miner."""
    honest = effects.judge

    def judge(spec: Any, base: Any, merged: Any, entrants: Sequence[Entrant], *rest: Any) -> Any:
        return honest(spec, base, merged, [e for e in entrants if e.hotkey != hotkey], *rest)

    monkeypatch.setattr(effects, "judge", judge)


def over(validator: Validator, world: World, miner: Miner) -> Callable[[str, Hotkey], ValidatorClient]:
    """Connects to ``validator``, whatever the address."""

    def connect(url: str, server: Hotkey) -> ValidatorClient:
        assert url == "http://192.0.2.9:80"
        return ValidatorClient(url, server, miner.signer, world.clock, httpx.ASGITransport(app=validator.app))

    return connect


async def robbed(world: World, folder: Path, revision: int = 1) -> tuple[Validator, Victim]:
    """Drive to a revision while the victim, miner 0, hands in by itself."""
    leader, victim = world.validator(), Victim(world, world.miners[0], folder)
    victim.miner.silent = True
    for _ in range(400):
        await leader.driver.step()
        if leader.board.journal.state.head >= revision and leader.board.round is None:
            return leader, victim
        if leader.board.round is not None:
            reply = victim.miner.beat(leader)
            if reply.round is not None and reply.round.instruction == "train":
                victim.miner.train(32)
            elif reply.round is not None and reply.round.instruction == "submit" and not reply.delivered:
                await victim.hand_in(leader)
        await play(world, leader)
        world.clock.advance(0.25)
    raise AssertionError(leader.board.waiting_for)


def test_the_miner_complains_the_follower_convicts_and_anybody_checks_it_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> tuple[World, Conviction]:
        world = await begin(dataset)
        leave_out(world.miners[0].signer.hotkey, monkeypatch)
        leader, victim = await robbed(world, tmp_path)
        watching = follower(world, tmp_path / "watching")
        await caught_up(watching, 1)

        victim.read()
        [(_, why)] = victim.receipts.broken(victim.view.first_plans)
        assert "left out" in why
        # A miner that was restarted meanwhile still has the receipt, and reads the plan again.
        victim = Victim(world, victim.miner, tmp_path)
        complaints = victim.complaints(over(watching, world, victim.miner))
        await complaints.look()
        [told] = watching.service.status().convicted
        assert told.startswith(f"{leader.board.signer.hotkey} left out {victim.miner.signer.hotkey}")
        assert victim.receipts.broken(victim.view.first_plans) == []
        await watching.convictions.flush()

        again = follower(world, tmp_path / "watching")
        assert again.service.status().convicted == [told]
        [name] = [name for name in again.service.report_index().names if name.endswith(".conviction.json")]
        body = again.service.report(name)
        conviction = decode_conviction(body, world.spec.run)
        assert (conviction.signer, conviction.leader) == (WATCHER.hotkey, leader.board.signer.hotkey)
        return world, conviction

    world, conviction = asyncio.run(go())
    reader, log = StoreReader(world.store), LogReader(StoreReader(world.store), world.spec)
    assert recheck(reader, log, conviction).proved
    for lie in (
        dataclasses.replace(conviction, seq=conviction.seq + 1),
        dataclasses.replace(conviction, slot_sha256=world.log().head_sha256),
        dataclasses.replace(conviction, seq=10**6),
    ):
        assert not recheck(reader, log, lie).proved


def test_an_honest_leader_is_not_convicted_and_who_can_be_reached_later_is_told_later(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        world = await begin(dataset)
        _, victim = await robbed(world, tmp_path)
        victim.read()
        assert victim.receipts.broken(victim.view.first_plans) == []

        watching = follower(world, tmp_path / "watching")
        [held] = victim.receipts._kept.values()
        request = ComplaintRequest(manifest=held.manifest_record.to_json(), receipt=held.receipt_record.to_json())
        reply = await watching.service.complain(victim.miner.caller, request)
        assert not reply.convicted
        assert "names a submission of this miner" in reply.reason
        assert watching.service.status().convicted == []

        leave_out(victim.miner.signer.hotkey, monkeypatch)
        _, victim = await robbed(world, tmp_path, revision=2)
        victim.read()

        def nobody(url: str, server: Hotkey) -> ValidatorClient:
            def away(request: httpx.Request) -> httpx.Response:
                raise httpx.ConnectError("away")

            return ValidatorClient(url, server, victim.miner.signer, world.clock, httpx.MockTransport(away))

        complaints = victim.complaints(nobody)
        await complaints.look()
        assert len(victim.receipts.broken(victim.view.first_plans)) == 1
        await caught_up(watching, 2)
        complaints._connect = over(watching, world, victim.miner)
        await complaints.look()
        assert watching.service.status().convicted == []
        world.clock.advance(60.0)
        await complaints.look()
        assert len(watching.service.status().convicted) == 1

    asyncio.run(go())


def test_a_complaint_without_proof_is_refused_by_its_own_code(dataset: Dataset, tmp_path: Path) -> None:
    async def go() -> None:
        world = await begin(dataset)
        leader, victim = await robbed(world, tmp_path)
        watching = follower(world, tmp_path / "watching")
        [held] = victim.receipts._kept.values()
        good = {"manifest": held.manifest_record.to_json(), "receipt": held.receipt_record.to_json()}
        thief = world.miners[1]
        forged = sign_receipt(dataclasses.replace(held.receipt, signer=thief.signer.hotkey), thief.signer).to_json()

        async def refused(
            code: str, validator: Validator = watching, miner: Miner = victim.miner, **changes: Any
        ) -> None:
            world.clock.advance(60.0)
            with pytest.raises(Rejected) as caught:
                await validator.service.complain(miner.caller, ComplaintRequest(**{**good, **changes}))
            assert caught.value.code == code

        await refused("wrong_hotkey", miner=thief)
        await refused("own_plan", validator=leader)
        await refused("bad_record", receipt={"body": 1})
        await refused("bad_signature", receipt={**good["receipt"], "signature": "0" * 128})  # type: ignore[dict-item]
        await refused("bad_manifest", manifest={"a\u00e4": "\ud800"})
        unsigned = await watching.service.complain(victim.miner.caller, ComplaintRequest(**{**good, "receipt": forged}))
        assert not unsigned.convicted

        fresh = sign_receipt(dataclasses.replace(held.receipt, round=99), VALIDATOR).to_json()  # type: ignore[arg-type]
        with pytest.raises(Rejected, match="another manifest"):
            await watching.service.complain(victim.miner.caller, ComplaintRequest(**{**good, "receipt": fresh}))

        async def insist() -> None:
            for _ in range(9):
                await watching.service.complain(victim.miner.caller, ComplaintRequest(**good))  # type: ignore[arg-type]

        with pytest.raises(RateLimited):
            await insist()
        assert watching.service.status().convicted == []

    asyncio.run(go())


def test_a_plan_that_is_not_read_yet_is_asked_for_again(dataset: Dataset, tmp_path: Path) -> None:
    async def go() -> None:
        world = await begin(dataset)
        watching = follower(world, tmp_path / "watching")
        _, victim = await robbed(world, tmp_path)
        [held] = victim.receipts._kept.values()
        request = ComplaintRequest(manifest=held.manifest_record.to_json(), receipt=held.receipt_record.to_json())
        with pytest.raises(Retryable):
            await watching.service.complain(victim.miner.caller, request)
        await watching.driver.step()
        assert not (await watching.service.complain(victim.miner.caller, request)).convicted

    asyncio.run(go())


def test_a_receipt_of_a_term_that_its_signer_does_not_lead_is_not_taken(dataset: Dataset, tmp_path: Path) -> None:
    async def go() -> None:
        world = await begin(dataset)
        _, victim = await robbed(world, tmp_path)
        [held] = victim.receipts._kept.values()
        wrong = dataclasses.replace(held.receipt, term=7)
        sent = Submission(held.manifest, held.manifest_record, b"")
        with pytest.raises(Retryable, match="of term 7"):
            await victim.receipts.keep(sent, wrong, sign_receipt(wrong, VALIDATOR))
        (tmp_path / "receipts.json").write_bytes(b"[1]")
        assert Receipts(tmp_path, world.spec.run, lambda: victim.view.state)._kept == {}

    asyncio.run(go())


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0), st.integers(1, 255), st.binary(max_size=60))
def test_a_damaged_conviction_is_no_conviction(at: int, flip: int, junk: bytes) -> None:
    body = bytearray(_CONVICTION)
    body[at % len(body)] ^= flip
    for data in (bytes(body), junk):
        with pytest.raises(Rejected):
            decode_conviction(data, "demo")


_ANY: dict[str, Any] = {"schema": 1, "run": "demo", "signer": WATCHER.hotkey, "leader": VALIDATOR.hotkey, "round": 1}
_CONVICTION = sign_conviction(
    Conviction(
        **_ANY,
        seq=3,
        slot_sha256="0" * 64,  # type: ignore[arg-type]
        told="merged wrongly",
        merged_wrongly=MergedWrongly(Revision(1), ()),
    ),
    WATCHER,
).encode()
