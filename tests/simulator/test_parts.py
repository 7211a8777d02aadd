"""Virtual time, links and the bowl: the parts that know nothing of rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.simulator.events import Queue
from validator.simulator.links import Link
from validator.simulator.quadratic import Quadratic


def test_calls_of_one_moment_run_in_the_order_in_which_they_were_asked_for() -> None:
    queue, seen = Queue(), []
    for name in "abc":
        queue.at(1.0, lambda name=name: seen.append(name))
    queue.at(0.5, lambda: seen.append("first"))
    while queue.step(10.0):
        pass
    assert seen == ["first", "a", "b", "c"]
    assert queue.now_s == 1.0


def test_a_call_that_was_cancelled_does_not_run() -> None:
    queue, seen = Queue(), []
    queue.at(1.0, lambda: seen.append(1)).cancel()
    assert not queue.step(10.0)
    assert seen == []


def test_two_transfers_share_a_link_evenly() -> None:
    queue, ended = Queue(), {}
    link = Link(queue, 8_000_000.0, 1e9)
    link.send(1_000_000, lambda: ended.update(one=queue.now_s))
    link.send(3_000_000, lambda: ended.update(two=queue.now_s))
    while queue.step(100.0):
        pass
    assert ended == {"one": pytest.approx(2.0), "two": pytest.approx(4.0)}
    assert link.moved_bytes == pytest.approx(4_000_000)


def test_one_transfer_gets_no_more_than_the_storage_gives() -> None:
    queue, ended = Queue(), []
    link = Link(queue, 8_000_000.0, 4_000_000.0)
    link.send(1_000_000, lambda: ended.append(queue.now_s))
    while queue.step(100.0):
        pass
    assert ended == [pytest.approx(2.0)]


def test_a_cut_link_goes_on_where_it_stood() -> None:
    queue, ended = Queue(), []
    link = Link(queue, 8_000_000.0, 1e9)
    link.send(2_000_000, lambda: ended.append(queue.now_s))
    queue.at(1.0, lambda: link.block(True))
    queue.at(6.0, lambda: link.block(False))
    while queue.step(100.0):
        pass
    assert ended == [pytest.approx(7.0)]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(1, 1e6)), min_size=1, max_size=6))
def test_every_byte_of_every_transfer_arrives(sent: list[tuple[float, float]]) -> None:
    queue, ended = Queue(), []
    link = Link(queue, 1_000_000.0, 600_000.0)
    for at_s, size_bytes in sent:
        queue.at(at_s, lambda size=size_bytes: link.send(size, lambda: ended.append(1)))
    queue.at(2.0, lambda: link.scale(0.1))
    queue.at(4.0, lambda: link.scale(1.0))
    while queue.step(1e6):
        pass
    assert len(ended) == len(sent)
    assert link.moved_bytes == pytest.approx(sum(size for _, size in sent), rel=1e-6)


def test_training_lowers_the_loss_and_is_the_same_every_time() -> None:
    problem = Quadratic(2048, 3)
    first = problem.start()
    later = problem.train(first, 400, 7)
    assert problem.loss(later) < problem.loss(first)
    assert np.array_equal(later, Quadratic(2048, 3).train(first, 400, 7))
    assert not np.array_equal(later, problem.train(first, 400, 8))


def test_honest_work_agrees_as_that_of_real_models_does() -> None:
    problem = Quadratic(8192, 1)
    first = problem.start()
    for steps, least, most in ((60, 0.15, 0.35), (300, 0.4, 0.75)):
        one, two = (problem.train(first, steps, draw) - first for draw in (1, 2))
        cosine = float(np.dot(one, two) / np.linalg.norm(one) / np.linalg.norm(two))
        assert least < cosine < most
