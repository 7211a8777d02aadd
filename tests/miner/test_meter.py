"""The uplink's speed as the upload's meter finds it, on a clock that the test moves."""

from __future__ import annotations

import pytest

from common.clock import ManualClock
from miner.meter import LONGEST_PAUSE_S, STRETCHES, UploadMeter


class Line:
    """An uplink of so many bytes a second, behind a buffer of ``buffer_bytes`` that takes them at once."""

    def __init__(self, bytes_per_s: float, buffer_bytes: int = 0) -> None:
        self.clock = ManualClock()
        self.meter = UploadMeter(self.clock.monotonic_s)
        self.bytes_per_s = bytes_per_s
        self.buffer_bytes = buffer_bytes

    def upload(self, size_bytes: int, block_bytes: int = 1000, already_bytes: int = 0) -> None:
        report = self.meter.begin(size_bytes, already_bytes)
        for sent in range(already_bytes, size_bytes + 1, block_bytes):
            report(sent)
            if sent - already_bytes >= self.buffer_bytes:
                self.clock.advance(block_bytes / self.bytes_per_s)
        self.clock.advance(min(self.buffer_bytes, size_bytes - already_bytes) / self.bytes_per_s)
        self.meter.end()


def test_nothing_is_known_before_the_first_upload() -> None:
    line = Line(1000)
    assert line.meter.rate_bps() is None
    line.meter.begin(10)
    line.meter.end()
    assert line.meter.rate_bps() is None


@pytest.mark.parametrize("buffer_bytes", [0, 3000, 40_000])
@pytest.mark.parametrize("bytes_per_s", [500, 20_000])
def test_it_is_what_the_line_carries(bytes_per_s: float, buffer_bytes: int) -> None:
    """Also where buffers swallow much at first, as long as their draining takes no longer than a stall."""
    line = Line(bytes_per_s, min(buffer_bytes, int(bytes_per_s * LONGEST_PAUSE_S / 2)))
    line.upload(200_000)
    assert line.meter.rate_bps() == pytest.approx(8 * bytes_per_s, rel=0.05)


def test_many_small_uploads_tell_it_too_and_idle_time_does_not_count() -> None:
    line = Line(2000)
    for _ in range(20):
        line.upload(1000, block_bytes=100)
        line.clock.advance(3600)
    assert line.meter.rate_bps() == pytest.approx(16_000, rel=0.15)


def test_it_is_told_during_a_long_upload() -> None:
    line = Line(1000)
    report = line.meter.begin(10**9)
    for second in range(12):
        report(1000 * second)
        line.clock.advance(1.0)
    assert line.meter.rate_bps() == pytest.approx(8000, rel=0.01)


def test_what_a_resumed_upload_found_there_was_not_carried_now() -> None:
    line = Line(1000)
    report = line.meter.begin(1_000_000, already_bytes=900_000)
    line.clock.advance(1.0)
    report(901_000)
    view = line.meter.view()
    assert view is not None
    assert (view.sent_bytes, view.rate_bps) == (901_000, 8000)
    line.meter.end()
    assert line.meter.rate_bps() == 8000


def test_a_part_that_starts_again_was_carried_all_the_same() -> None:
    line = Line(1000)
    report = line.meter.begin(100_000)
    for sent in (1000, 2000, 3000, 500, 1500, 2500):
        line.clock.advance(1.0 if sent != 500 else 0.5)
        report(sent)
    line.meter.end()
    assert line.meter.rate_bps() == pytest.approx(8 * 5000 / 5.5)


def test_an_outage_is_no_slow_line() -> None:
    line = Line(1000)
    line.upload(60_000)
    line.meter.begin(60_000)(0)
    line.clock.advance(3600)  # nobody answered
    line.meter.end()
    assert line.meter.rate_bps() == pytest.approx(8000, rel=0.05)
    report = line.meter.begin(60_000)
    report(1000)
    line.clock.advance(3600)  # it broke off in the middle
    line.meter.end()
    before = 8 * 61_000 / (61 + LONGEST_PAUSE_S)
    assert line.meter.rate_bps() == pytest.approx(before, rel=0.05)


def test_a_line_that_changed_is_noticed_and_the_past_forgotten() -> None:
    line = Line(10_000)
    line.upload(600_000)
    line.bytes_per_s = 1000
    line.upload(60_000)
    between = line.meter.rate_bps()
    assert between is not None
    assert 8_000 < between < 80_000
    for _ in range(STRETCHES):
        line.upload(10_000)
    assert line.meter.rate_bps() == pytest.approx(8000, rel=0.12)
