"""Probes over the validator's own door: ordered with heartbeats, answered at /v1/probes, timed by its clock."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from common import keys, timeouts
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.probes import downlink_proof, uplink_bytes
from common.units import Hotkey
from common.wire import HeartbeatReply, ProbeOrder, ProbeReply, parse
from tests.validator.test_api import Desk, beat, refused
from tests.validator.world import Miner
from validator.health.breaks import Attempts, Break
from validator.health.evidence import Kind
from validator.probes import TRANSFERS


class Probed(Desk):
    """A validator that is asked for probes of its miners, and miners that a test plays."""

    seq = 0

    def want(self, kind: Kind, *miners: Miner, confirm: bool = True) -> None:
        hotkeys = frozenset(miner.signer.hotkey for miner in miners or [self.miner])
        self.validator.probing.want({kind: hotkeys}, self.world.clock.monotonic_s(), confirm=confirm)

    async def heartbeat(self, miner: Miner | None = None) -> ProbeOrder | None:
        Probed.seq += 1
        response = await self.post("/v1/heartbeat", beat(seq=Probed.seq), signer=(miner or self.miner).signer)
        return parse(HeartbeatReply, response.content).probe

    async def look(self) -> None:
        await self.validator.probing.turn()
        await self.validator.probing.idle()

    async def order(self, miner: Miner | None = None) -> ProbeOrder:
        """Heartbeats and looks until there is one."""
        for _ in range(3):
            order = await self.heartbeat(miner)
            if order is not None:
                return order
            await self.look()
        raise AssertionError("no probe is ordered")

    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    async def pass_over(self, miner: Miner | None = None) -> None:
        """Give no answer until the time is over; heartbeats go on."""
        await self.order(miner)
        for _ in range(int(timeouts.PROBE_S) + 1):
            self.wait(1.0)
            await self.validator.probing.turn()
            await self.heartbeat(miner)
        await self.look()

    def body(self, order: ProbeOrder, miner: Miner | None = None) -> bytes:
        return self.world.store.get(self.key(miner, "down"), max_bytes=order.size_bytes).body

    def key(self, miner: Miner | None, way: Any) -> str:
        return keys.probe_key(self.world.spec.run, (miner or self.miner).signer.hotkey, way)

    def put(self, order: ProbeOrder, body: bytes | None = None) -> None:
        assert order.upload is not None
        data = uplink_bytes(order.nonce, order.size_bytes) if body is None else body
        self.world.store.redeem_put(order.upload.url, order.upload.headers, data)

    async def answer(self, order: ProbeOrder, miner: Miner | None = None, **changes: Any) -> Any:
        body = json.dumps({"nonce": order.nonce} | changes).encode()
        return await self.post("/v1/probes", body, signer=(miner or self.miner).signer)

    async def says(self, order: ProbeOrder, miner: Miner | None = None, **changes: Any) -> ProbeReply:
        response = await self.answer(order, miner, **changes)
        assert response.status_code == 200, response.content
        return parse(ProbeReply, response.content)

    async def know(self) -> None:
        """Let the miner answer a probe, so that its silence counts from now on."""
        self.want(Kind.UPLINK)
        assert (await self.says(await self.order(), busy=True)).counted is False
        self.wait(timeouts.PROBE_AGAIN_S)

    def shown(self) -> dict[Kind, dict[Hotkey, tuple[float, bool]]]:
        found = self.validator.probing.take(self.world.clock.monotonic_s())
        return {
            kind: {hotkey: (math.exp(level.log_rate), level.at_most) for hotkey, level in levels.items()}
            for kind, levels in found.items()
        }


def with_probes(dataset: Dataset, act: Callable[[Probed], Awaitable[None]]) -> None:
    async def go() -> None:
        desk = Probed(dataset)
        await desk.open()
        await desk.look()
        await act(desk)
        await desk.http.aclose()

    asyncio.run(go())


@pytest.mark.parametrize("kind", [Kind.UPLINK, Kind.DOWNLINK])
def test_a_link_is_measured_from_the_order_to_the_answer(dataset: Dataset, kind: Kind) -> None:
    async def act(desk: Probed) -> None:
        assert await desk.heartbeat() is None
        desk.want(kind)
        for seconds in (2.0, 9.0, 1.0):
            order = await desk.order()
            assert order.kind == kind.value
            desk.wait(seconds)
            if kind is Kind.UPLINK:
                desk.put(order)
                reply = await desk.says(order)
            else:
                reply = await desk.says(order, proof=downlink_proof(order.nonce, desk.body(order)))
            assert reply.counted
        rate, at_most = desk.shown()[kind][desk.miner.signer.hotkey]
        assert rate == pytest.approx(order.size_bytes / 2.0, rel=0.01)
        assert not at_most
        assert desk.shown() == {}
        await desk.look()
        assert await desk.heartbeat() is None
        listed = [info.key for info in desk.world.store.list(f"runs/{desk.world.spec.run}/probes/")]
        assert listed == [desk.key(None, "up" if kind is Kind.UPLINK else "down")]

    with_probes(dataset, act)


def test_an_uplink_that_comes_short_is_told_apart_from_a_wrong_answer(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        for sent in (lambda body: body[:-1], lambda body: body, lambda body: b"x" + body[1:]):
            order = await desk.order()
            desk.world.store.put(desk.key(None, "up"), sent(uplink_bytes(order.nonce, order.size_bytes)))
            await desk.says(order)
        vitals, hotkey = desk.validator.board.health.vitals, desk.miner.signer.hotkey
        seen = vitals.take_attempts(desk.world.clock.monotonic_s())
        assert seen[Break.TRUNCATE] == {hotkey: Attempts(2, 1)}
        assert seen[Break.UNREACHABLE] == {hotkey: Attempts(3, 0)}, "it has answered"

    with_probes(dataset, act)


def test_an_order_that_is_never_answered_counts_if_its_miner_is_heard(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        vitals, hotkey = desk.validator.board.health.vitals, desk.miner.signer.hotkey
        await desk.know()
        assert vitals.busy == {hotkey: 1}
        assert vitals.take_attempts(desk.world.clock.monotonic_s())[Break.UNREACHABLE] == {hotkey: Attempts(1, 0)}
        await desk.order()
        for _ in range(int(timeouts.PROBE_S) + 2):
            desk.wait(1.0)
            await desk.look()
        assert Break.UNREACHABLE not in vitals.take_attempts(desk.world.clock.monotonic_s()), "it may be gone"
        await desk.pass_over()
        assert vitals.take_attempts(desk.world.clock.monotonic_s())[Break.UNREACHABLE] == {hotkey: Attempts(1, 1)}
        assert vitals.busy == {}

    with_probes(dataset, act)


def test_wrong_answers_count_as_none(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        order = await desk.order()
        assert not (await desk.says(order)).counted  # nothing was put
        refused(await desk.answer(order), 409, "not_asked")
        order = await desk.order()
        with pytest.raises(Rejected, match="checksum_mismatch"):
            desk.put(order, bytes(order.size_bytes))
        assert not (await desk.says(order)).counted
        rate, at_most = desk.shown()[Kind.UPLINK][desk.miner.signer.hotkey]
        assert rate == pytest.approx(order.size_bytes / timeouts.PROBE_S)
        assert at_most
        desk.want(Kind.DOWNLINK)
        for _ in range(TRANSFERS):
            order = await desk.order()
            if order.kind == "uplink":
                desk.put(order)
                assert (await desk.says(order)).counted
                continue
            assert not (await desk.says(order, proof=downlink_proof("0" * 32, desk.body(order)))).counted
        assert desk.shown()[Kind.DOWNLINK][desk.miner.signer.hotkey][1]

    with_probes(dataset, act)


def test_who_repeats_an_earlier_answer_or_gives_anothers_gains_nothing(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        ours, theirs = desk.world.miners[:2]
        desk.want(Kind.DOWNLINK, ours, theirs)
        first = await desk.order(ours)
        answered = downlink_proof(first.nonce, desk.body(first, ours))
        assert (await desk.says(first, ours, proof=answered)).counted
        other, again = await desk.order(theirs), await desk.order(ours)
        right = downlink_proof(other.nonce, desk.body(other, theirs))
        refused(await desk.answer(first, ours, proof=answered), 409, "not_asked")
        refused(await desk.answer(other, ours, proof=right), 409, "not_asked")
        assert (await desk.says(other, theirs, proof=right)).counted
        # The bytes of before, the other's bytes, the earlier proof: none is right under this nonce.
        assert not (await desk.says(again, ours, proof=answered)).counted
        assert desk.shown()[Kind.DOWNLINK].keys() == {ours.signer.hotkey, theirs.signer.hotkey}

    with_probes(dataset, act)


def test_what_was_put_before_is_no_answer_to_the_next_order(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        first = await desk.order()
        desk.put(first)
        assert (await desk.says(first)).counted
        second = await desk.order()
        desk.put(first)  # its URL lives still
        assert not (await desk.says(second)).counted

    with_probes(dataset, act)


def test_a_silent_miner_is_slow_only_if_it_has_answered_before(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        await desk.pass_over()
        assert desk.shown() == {}
        assert desk.validator.probing.wanted == 0
        desk.wait(8 * timeouts.PROBE_REST_S)
        await desk.look()
        await desk.know()
        await desk.pass_over()
        ((rate, at_most),) = desk.shown()[Kind.UPLINK].values()
        assert at_most
        assert rate == pytest.approx((1 << 20) / timeouts.PROBE_S)

    with_probes(dataset, act)


def test_silence_while_the_storage_is_away_or_the_leader_sleeps_tells_nothing(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        await desk.know()

        def away(operation: str, key: str) -> None:
            if "/probes/" in key:
                raise Retryable("the storage is away")

        await desk.look()
        order = await desk.order()
        desk.world.store.before = away
        assert (await desk.says(order)).reason == "the storage does not answer this validator"
        desk.world.store.before = None
        desk.wait(timeouts.PROBE_AGAIN_S)
        await desk.look()
        await desk.order()
        desk.world.store.before = away
        for _ in range(int(timeouts.PROBE_S) + 1):
            desk.wait(1.0)
            await desk.validator.probing.turn()
            await desk.heartbeat()
        await desk.look()
        desk.world.store.before = None
        desk.wait(timeouts.PROBE_AGAIN_S)
        await desk.look()
        order = await desk.order()
        desk.put(order)
        desk.wait(timeouts.ASLEEP_S + 1.0)
        refused(await desk.answer(order), 409, "not_asked")
        assert desk.shown() == {}
        assert desk.validator.probing.wanted == 1

    with_probes(dataset, act)


def test_who_does_not_lead_orders_nothing_and_takes_no_answers(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        order = await desk.order()
        desk.validator.board.leadership.resign("a test says so")
        refused(await desk.answer(order), 409, "not_leader")
        assert await desk.heartbeat() is None
        await desk.look()
        assert desk.validator.probing.wanted == 0

    with_probes(dataset, act)


def test_the_door_takes_no_strangers_and_no_long_or_odd_messages(dataset: Dataset) -> None:
    async def act(desk: Probed) -> None:
        desk.want(Kind.UPLINK)
        order = await desk.order()
        for odd in ({"proof": "no"}, {"busy": "yes"}, {"took_s": 0.01}, {"nonce": "x"}):
            refused(await desk.answer(order, **odd), 400, "bad_message")
        refused(await desk.answer(order, proof="0" * 2000), 413, "too_large")
        stranger = Miner(desk.world, type(desk.miner.signer).from_uri("//Stranger"))
        refused(await desk.answer(order, stranger), 403, "not_member")
        desk.put(order)
        assert (await desk.says(order)).counted

    with_probes(dataset, act)
