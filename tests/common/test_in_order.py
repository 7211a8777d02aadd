"""Blocking calls several at a time: results in order, bounded in number and bytes, errors in their place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from common.blocking import in_order

PATIENCE_S = 30.0


class Calls:
    """Notes what was begun; each call waits until it may end."""

    def __init__(self, sizes: list[int]) -> None:
        self.begun = [threading.Event() for _ in sizes]
        self.may_end = [threading.Event() for _ in sizes]
        self.asked = 0
        self._sizes = sizes

    def __iter__(self) -> Iterator[tuple[int, Callable[[], int]]]:
        for number, size_bytes in enumerate(self._sizes):
            self.asked = number + 1
            yield size_bytes, self._call(number)

    def _call(self, number: int) -> Callable[[], int]:
        def work() -> int:
            self.begun[number].set()
            assert self.may_end[number].wait(PATIENCE_S)
            return number

        return work

    def let_all_end(self) -> None:
        for event in self.may_end:
            event.set()


def test_results_come_in_order_whichever_call_ends_first() -> None:
    calls = Calls([1] * 4)
    found: list[int] = []
    taker = threading.Thread(target=lambda: found.extend(in_order(calls, 4, 100)))
    taker.start()
    for number in reversed(range(4)):
        assert calls.begun[number].wait(PATIENCE_S), "all four are under way together"
    for number in reversed(range(4)):
        calls.may_end[number].set()
    taker.join(PATIENCE_S)
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at_a_time", "most_bytes", "ahead"),
    [(3, 1000, 3), (8, 25, 2), (8, 5, 1)],
    ids=["as many as may be", "as many bytes as may be", "one that is larger alone"],
)
def test_no_more_is_begun_than_may_be(at_a_time: int, most_bytes: int, ahead: int) -> None:
    """Of results of 10 bytes; one is taken, and one more than before has been asked for."""
    calls = Calls([10] * 8)
    calls.let_all_end()
    results = in_order(calls, at_a_time, most_bytes)
    for taken in range(8):
        assert next(results) == taken
        assert calls.asked <= min(8, taken + ahead + 1), "the one that is asked for next has not begun"
        assert all(not event.is_set() for event in calls.begun[taken + ahead + 1 :])
    assert list(results) == []


def test_an_error_comes_in_its_place() -> None:
    def fails() -> int:
        raise ValueError("the second")

    results = in_order([(1, lambda: 1), (1, fails), (1, lambda: 3)], 3, 100)
    assert next(results) == 1
    with pytest.raises(ValueError, match="the second"):
        next(results)


def test_of_nothing_nothing_comes() -> None:
    assert list(in_order([], 3, 100)) == []
