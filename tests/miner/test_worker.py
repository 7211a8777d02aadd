"""The training thread, the upload's meter, and waiting: what the event loop relies on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from common.errors import Fatal, Retryable
from miner.meter import Abandoned, UploadMeter
from miner.patience import Patience
from miner.trainer import Trainer
from miner.work import RoundWork
from miner.worker import Worker
from tests.miner.test_trainer import SHARD, SPEC, Stream, base, stream


def make_work() -> RoundWork:
    return RoundWork(Trainer(SPEC, SHARD), SPEC.inner)


class Gate(Stream):
    """Batches that come one at a time, when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.waiting = threading.Event()

    def batch(self, start: int, count: int):  # type: ignore[no-untyped-def]
        self.waiting.set()
        assert self.permits.acquire(timeout=60)
        return super().batch(start, count)


def test_commands_run_between_steps_and_see_whole_ones() -> None:
    async def scenario() -> None:
        worker, gate = Worker(make_work), Gate()
        worker.start()
        await worker.call(lambda work: work.begin(base(), stream(gate)))
        await worker.train(True)
        await asyncio.to_thread(gate.waiting.wait)
        stopping = asyncio.create_task(worker.train(False))
        await asyncio.sleep(0)
        assert not stopping.done(), "the step in progress is finished first"
        gate.permits.release()
        await stopping
        done = (await worker.call(RoundWork.mark)).work
        assert done.steps == 1
        assert worker.progress().steps == 1
        assert worker.progress().tokens == done.tokens
        await worker.stop()

    asyncio.run(scenario())


def test_nothing_is_trained_before_it_is_told() -> None:
    async def scenario() -> None:
        worker, batches = Worker(make_work), Stream()
        worker.start()
        await worker.call(lambda work: work.begin(base(), stream(batches)))
        await worker.call(lambda work: None)
        assert batches.asked == []
        await worker.stop()

    asyncio.run(scenario())


def test_what_a_command_raises_is_the_callers_and_the_thread_lives_on() -> None:
    async def scenario() -> None:
        worker = Worker(make_work)
        worker.start()
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda work: 1 // 0)
        assert await worker.call(lambda work: 7) == 7
        await worker.stop()

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_leaves_the_thread_alive() -> None:
    async def scenario() -> None:
        worker = Worker(make_work)
        worker.start()
        begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

        def slow(work: RoundWork) -> None:
            begun.set()
            assert go_on.wait(60)

        caller = asyncio.create_task(worker.call(slow))
        queued = asyncio.create_task(worker.call(lambda work: done.set()))
        await asyncio.to_thread(begun.wait)
        caller.cancel()
        queued.cancel()
        await asyncio.wait({caller, queued})
        go_on.set()
        assert await worker.call(lambda work: 7) == 7
        assert done.is_set()
        await worker.stop()

    asyncio.run(scenario())


def test_what_the_thread_dies_of_is_told_to_whoever_calls() -> None:
    broke = threading.Event()

    class Broken(Stream):
        def batch(self, start: int, count: int):  # type: ignore[no-untyped-def]
            broke.set()
            raise MemoryError("no room on the device")

    async def scenario() -> None:
        worker = Worker(make_work)
        worker.start()
        await worker.call(lambda work: work.begin(base(), stream(Broken())))
        await worker.train(True)
        await asyncio.to_thread(broke.wait)
        for _ in range(2):  # while it dies, and when it is dead
            with pytest.raises(Fatal, match="no room on the device"):
                await worker.call(lambda work: None)
        await worker.stop()

    asyncio.run(scenario())


def test_a_limit_on_speed_waits_but_not_for_commands() -> None:
    async def scenario() -> None:
        worker, batches = Worker(make_work, max_tokens_per_s=1e-3), Stream()  # the second step would come after hours
        worker.start()
        await worker.call(lambda work: work.begin(base(), stream(batches)))
        await worker.train(True)
        await worker.train(False)
        assert len(batches.asked) <= 1
        await worker.stop()

    asyncio.run(scenario())


def test_an_abandoned_upload_ends_at_its_next_block() -> None:
    meter = UploadMeter(lambda: 0.0)
    first = meter.begin(100)
    first(50)
    view = meter.view()
    assert view is not None
    assert (view.size_bytes, view.sent_bytes) == (100, 50)
    second = meter.begin(200)
    with pytest.raises(Abandoned):
        first(60)
    second(10)
    meter.end()
    assert meter.view() is None
    with pytest.raises(Abandoned):
        second(20)


def test_a_block_waits_while_a_heartbeat_travels() -> None:
    meter = UploadMeter(lambda: 0.0)
    report = meter.begin(100)
    passed = threading.Event()

    def upload() -> None:
        report(10)
        passed.set()

    with meter.heartbeat_first():
        thread = threading.Thread(target=upload)
        thread.start()
        held = not passed.is_set()
    thread.join()
    assert held
    assert passed.is_set()


def test_waits_grow_with_jitter_and_start_again_after_a_success() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def scenario() -> None:
        patience = Patience("trying", sleep, lambda: 1.0)
        for _ in range(6):
            await patience.bear(Retryable("away"))
        assert patience.trouble == "away"
        patience.relax()
        assert patience.trouble == ""
        await patience.bear(Retryable("busy", retry_after_s=30.0))
        await Patience("trying", sleep, lambda: 0.0).bear(Retryable("away"))

    asyncio.run(scenario())
    assert waited == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 30.0, 0.125]
