"""Deliveries in parts to a real S3 server: what is sent, what is sent again, and what ends it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from common.errors import BrigadeError, Rejected
from common.identity import SignedRecord
from common.store.config import StorageConfig
from common.store.multipart import MIN_PART_BYTES, Md5
from common.store.retry import NO_RETRIES
from common.wire import MultipartTarget, PartTarget, SubmissionReply, UploadTarget
from miner.lanes import Lanes
from miner.meter import UploadMeter
from miner.uplink import MAX_FRESH_STARTS, Delivery
from tests.miner.sending import (
    DELTA,
    OVERHEAD_BYTES,
    Desk,
    deliver,
    stored,
    submission,
    uplink_to,
)
from tests.support.faultproxy import FaultProxy
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.storage import QUICK, fresh_prefix, quick_store, running_server

PATIENCE_S = 60


class Dies(BrigadeError):
    """The miner's process is killed."""


class MortalMeter(UploadMeter):
    """Its process dies when so much has been sent."""

    def __init__(self, dies_at_bytes: int) -> None:
        super().__init__(time.monotonic)
        self._dies_at_bytes = dies_at_bytes

    def begin(self, size_bytes: int, already_bytes: int = 0) -> Callable[[int], None]:
        report = super().begin(size_bytes, already_bytes)

        def told(sent_bytes: int) -> None:
            if sent_bytes > self._dies_at_bytes:
                raise Dies("killed")
            report(sent_bytes)

        return told


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageConfig]:
    with running_server(tmp_path_factory.mktemp("seaweed")) as (_, config):
        yield config


@pytest.fixture
def proxy(server: StorageConfig) -> Iterator[FaultProxy]:
    with FaultProxy(server.endpoint) as running:
        yield running


@pytest.fixture
def desk(server: StorageConfig, proxy: FaultProxy) -> Desk:
    """Its URLs lead through the proxy."""
    return Desk(quick_store(replace(fresh_prefix(server), endpoint=proxy.endpoint)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are retried at once."""
    monkeypatch.setattr("miner.uplink.PART_POLICY", QUICK)


def test_a_delta_of_several_parts_arrives_whole(desk: Desk, proxy: FaultProxy) -> None:
    meter = UploadMeter(time.monotonic)
    assert deliver(desk, meter) == Delivery(True, "", "the leader has the delta of round 4")
    assert desk.asked == [[1, 2, 3, 4]]
    assert stored(desk) == DELTA
    assert proxy.up_bytes < len(DELTA) + OVERHEAD_BYTES
    assert meter.view() is None
    assert meter.rate_bps() is not None


def test_a_small_one_goes_in_one_put(desk: Desk) -> None:
    assert deliver(desk, delta=b"small").accepted
    assert desk.asked == []
    assert stored(desk, b"small") == b"small"


def test_after_a_kill_only_what_is_missing_is_sent(
    desk: Desk, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.lanes.LANES", 1)
    with pytest.raises(Dies):
        deliver(desk, MortalMeter(MIN_PART_BYTES * 5 // 2))
    proxy.cut_all()  # what is still in the proxy's buffers dies too
    before_bytes = proxy.up_bytes
    assert before_bytes > 2 * MIN_PART_BYTES
    assert deliver(Desk(desk.store)).accepted  # another process of the miner, and of the leader
    missing_bytes = len(DELTA) - 2 * MIN_PART_BYTES
    assert missing_bytes <= proxy.up_bytes - before_bytes < missing_bytes + OVERHEAD_BYTES
    assert stored(desk) == DELTA


def test_parts_that_were_cut_off_are_repeated_alone(desk: Desk, proxy: FaultProxy) -> None:
    list(desk.store.list_uploads(""))  # the leader has its connection before the cuts are meant for the miner's
    proxy.cut_requests(MIN_PART_BYTES // 2, MIN_PART_BYTES // 3)
    assert deliver(desk).accepted
    assert len(desk.asked) <= 2
    assert proxy.up_bytes < len(DELTA) + MIN_PART_BYTES + OVERHEAD_BYTES
    assert stored(desk) == DELTA


def test_a_busy_storage_is_asked_again_for_the_part_alone(desk: Desk, proxy: FaultProxy) -> None:
    proxy.answer(503, 5, retry_after_s=0, method="PUT")
    assert deliver(desk).accepted
    assert desk.asked == [[1, 2, 3, 4]]
    assert stored(desk) == DELTA


def test_a_part_that_fails_for_good_costs_none_that_went_through(
    desk: Desk, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.uplink.PART_POLICY", NO_RETRIES)
    proxy.answer(503, method="PUT")
    assert deliver(desk).accepted
    first, second = desk.asked
    assert first == [1, 2, 3, 4]
    assert 1 <= len(second) <= 2, "the other two lanes went on to the end of their parts"
    assert stored(desk) == DELTA


def test_bytes_that_were_damaged_on_the_way_are_sent_again(desk: Desk, proxy: FaultProxy) -> None:
    list(desk.store.list_uploads(""))  # the leader has its connection before the damage is meant for the miner's
    proxy.corrupt_requests(MIN_PART_BYTES // 2)
    assert deliver(desk).accepted
    first, second = desk.asked
    assert first == [1, 2, 3, 4]
    assert 1 <= len(second) <= 2, "the damaged one, and one that was not begun by then"
    assert stored(desk) == DELTA


def test_a_leader_that_hears_of_it_anew_gets_no_byte_again(desk: Desk, proxy: FaultProxy) -> None:
    desk.findings = [Rejected("not_announced", "another process leads")]
    assert deliver(desk).accepted
    assert desk.asked == [[1, 2, 3, 4], []]
    assert proxy.up_bytes < len(DELTA) + OVERHEAD_BYTES


def test_more_parts_than_a_reply_names_are_asked_for_next(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validator.uploads.MAX_PARTS_A_REPLY", 3)
    assert deliver(desk).accepted
    assert desk.asked == [[1, 2, 3], [4]]
    assert stored(desk) == DELTA


def test_a_url_that_is_refused_is_asked_for_again(desk: Desk) -> None:
    def spoil(target: MultipartTarget) -> MultipartTarget:
        desk.tamper = lambda same: same
        return _with_urls(target, lambda url: url.replace("X-Amz-Signature=", "X-Amz-Signature=0"))

    desk.tamper = spoil
    assert deliver(desk).accepted
    assert desk.asked == [[1, 2, 3, 4]] * 2


def test_while_a_leaders_keys_are_changed_its_urls_are_asked_for_as_long_as_that_takes(desk: Desk) -> None:
    left = MAX_FRESH_STARTS + 3

    def spoil(target: MultipartTarget) -> MultipartTarget:
        nonlocal left
        left -= 1
        dead = left > 0
        return _with_urls(target, lambda url: url.replace("X-Amz-Signature=", "X-Amz-Signature=0")) if dead else target

    desk.tamper = spoil
    assert deliver(desk).accepted
    assert left == 0


@pytest.mark.parametrize(
    "elsewhere", ["http://127.0.0.1:1/x", "http://169.254.169.254/latest", "file:///etc/passwd", ""]
)
def test_no_part_goes_anywhere_else(desk: Desk, proxy: FaultProxy, elsewhere: str) -> None:
    def redirect(target: MultipartTarget) -> MultipartTarget:
        last = target.parts[-1].model_copy(update={"url": elsewhere})
        return target.model_copy(update={"parts": (*target.parts[:-1], last)})

    desk.tamper = redirect
    delivery = deliver(desk)
    assert (delivery.accepted, delivery.code) == (False, "url_refused")
    assert len(desk.asked) == MAX_FRESH_STARTS + 1
    assert proxy.up_bytes < 2 * OVERHEAD_BYTES


def test_a_leader_that_miscounts_what_is_missing_ends_nobodys_upload(desk: Desk, proxy: FaultProxy) -> None:
    desk.tamper = lambda target: target.model_copy(update={"missing": 100})
    assert deliver(desk).accepted
    assert desk.asked == [[1, 2, 3, 4], []]
    assert proxy.up_bytes < len(DELTA) + OVERHEAD_BYTES


@pytest.mark.parametrize("numbers", [[5], [1, 1], [2, 3, 4096]])
def test_parts_that_the_delta_does_not_have_are_refused(numbers: list[int]) -> None:
    lanes = Lanes(DELTA, MIN_PART_BYTES, lambda part, body, report: None)
    with pytest.raises(Rejected, match="url_refused"):
        lanes.check([PartTarget(number=number, url="u", headers={}) for number in numbers])


def test_parts_are_not_sent_twice_in_one_attempt() -> None:
    lanes = Lanes(DELTA, MIN_PART_BYTES, lambda part, body, report: None)
    target = MultipartTarget(
        parts=tuple(PartTarget(number=number, url="u", headers={}) for number in (1, 2, 3)), missing=4, expires_in_s=1.0
    )
    asyncio.run(lanes.run(target, UploadMeter(time.monotonic)))
    assert lanes.through == 3
    lanes.check(target.parts[:1])
    with pytest.raises(Rejected, match="again"):
        lanes.check(target.parts)
    with pytest.raises(Rejected, match="does not have"):
        Lanes(b"small", MIN_PART_BYTES, lambda part, body, report: None).check(target.parts[:1])


def test_a_cancelled_upload_stops_at_its_next_block(desk: Desk, proxy: FaultProxy) -> None:
    meter = UploadMeter(time.monotonic)

    async def scenario() -> None:
        proxy.link.up.rate_bps = 160e6
        uplink = uplink_to(desk, meter)
        delivery = asyncio.create_task(uplink.deliver(submission()))
        await _until(lambda: (view := meter.view()) is not None and view.sent_bytes > 0)
        await _cancel(delivery)
        uplink.close()

    asyncio.run(scenario())
    _threads_end()
    assert meter.view() is None
    assert proxy.up_bytes < len(DELTA)


def test_a_cancelled_upload_does_not_wait_for_a_busy_storage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miner.uplink.PUT_POLICY", replace(QUICK, longest_asked_wait_s=3600.0))
    busy = Reply(503, b"<Code>SlowDown</Code>", {"retry-after": "3600"})

    async def scenario(storage: ScriptedServer) -> None:
        uplink = uplink_to(desk, endpoint=storage.url())
        target = UploadTarget(url=storage.url("/k"), headers={}, expires_in_s=60.0)

        async def submit(record: SignedRecord, parts: tuple[Md5, ...]) -> SubmissionReply:
            reply = await Desk.submit(desk, record, parts)
            return reply.model_copy(update={"upload": target})

        desk.submit = submit  # type: ignore[method-assign]
        delivery = asyncio.create_task(uplink.deliver(submission(b"small")))
        await _until(lambda: bool(storage.requests))
        await _cancel(delivery)
        uplink.close()

    with ScriptedServer(lambda _: busy) as storage:
        asyncio.run(scenario(storage))
        _threads_end()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _threads_end() -> None:
    for thread in [one for one in threading.enumerate() if one.name == "blocking"]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _with_urls(target: MultipartTarget, change: Callable[[str], str]) -> MultipartTarget:
    parts = tuple(part.model_copy(update={"url": change(part.url)}) for part in target.parts)
    return target.model_copy(update={"parts": parts})
