"""Continuous training: marks, moves onto new revisions, streams, and returns to the base."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.units import Revision
from miner.schedule import global_step
from miner.trace import sample_ranges
from miner.trainer import STUCK_STEPS, Trainer
from miner.work import RoundWork
from tests.miner.test_trainer import BASE, SHARD, SPEC, Stream, base, stream

BATCH = SPEC.inner.batch_size
TOKENS = BATCH * SPEC.data.seq_len


def begun(batches: Stream | None = None) -> RoundWork:
    work = RoundWork(Trainer(SPEC, SHARD), SPEC.inner)
    work.begin(base(), stream(batches or Stream()))
    return work


def step(work: RoundWork, count: int) -> None:
    for _ in range(count):
        work.step()


def blow_up(work: RoundWork) -> None:
    """As an overflow would leave it; then steps until the trainer goes back."""
    work.trainer._flat.weights[-1] = float("inf")
    assert "back to the base" in [work.step() for _ in range(STUCK_STEPS)][-1].went_back


def test_a_mark_holds_the_work_so_far_and_training_goes_on() -> None:
    work = begun()
    step(work, 3)
    mark = work.mark()
    step(work, 2)
    later = work.mark()
    assert (mark.work.steps, later.work.steps) == (3, 5)
    assert later.work.trace[:3] == mark.work.trace
    assert np.array_equal(later.work.moved, work.trainer.weights() - BASE)
    assert (mark.base, mark.work.tokens) == (base(), 3 * TOKENS)


def test_a_settled_mark_leaves_the_training_and_the_rest_moves_onto_the_new_revision() -> None:
    work, new = begun(), base(1, BASE + np.float32(0.5))
    step(work, 3)
    mark = work.mark().work
    step(work, 2)
    x = work.trainer.weights()
    optimizer = work.rebase(new, mark)
    assert np.array_equal(work.trainer.weights(), new.weights + ((x - BASE) - mark.moved))
    assert optimizer.steps == 5, "the moments go on"
    after = work.mark()
    assert (after.base, after.work.steps, after.work.tokens) == (new, 2, 2 * TOKENS)
    step(work, 1)
    assert work.mark().work.trace[-1].global_step == global_step(SPEC.inner, Revision(1), 2)


def test_when_nothing_was_trained_after_the_mark_the_new_revision_is_what_there_is() -> None:
    work, new = begun(), base(1, BASE + np.float32(0.5))
    step(work, 3)
    work.rebase(new, work.mark().work)
    assert np.array_equal(work.trainer.weights(), new.weights)
    assert work.progress.steps == work.progress.work_tokens == 0


def test_without_a_settled_mark_all_of_the_work_comes_along() -> None:
    work, new = begun(), base(1, BASE + np.float32(0.5))
    step(work, 3)
    x = work.trainer.weights()
    work.rebase(new, None)
    assert np.array_equal(work.trainer.weights(), new.weights + (x - BASE))
    assert work.mark().work.tokens == 3 * TOKENS


def test_samples_come_from_the_round_that_is_open_and_none_comes_twice() -> None:
    work, first, second = begun(Stream()), Stream(), Stream()
    work.restream(stream(first, round_id=1))
    step(work, 2)
    work.restream(stream(second, round_id=2, revision=0))
    step(work, 1)
    work.restream(stream(first, round_id=1))
    step(work, 1)
    assert first.asked == [0, BATCH, 2 * BATCH]
    assert second.asked == [0]
    assert [(part.round, part.start, part.count) for part in sample_ranges(work.mark().work.trace)] == [
        (1, 0, 2 * BATCH),
        (2, 0, BATCH),
        (1, 2 * BATCH, BATCH),
    ]


def test_work_from_the_disk_goes_on_where_it_was() -> None:
    first, batches = begun(), Stream()
    step(first, 3)
    held = first.mark().work
    second = RoundWork(Trainer(SPEC, SHARD), SPEC.inner)
    second.begin(base(), stream(batches), held)
    assert np.allclose(second.mark().work.moved, held.moved, atol=1e-7)
    step(second, 1)
    assert batches.asked == [3 * BATCH]
    after = second.mark().work
    assert (after.tokens, after.trace[:3]) == (4 * TOKENS, held.trace)


def test_after_many_bad_steps_it_goes_back_and_says_what_is_lost() -> None:
    work = begun()
    step(work, 3)
    blow_up(work)
    assert np.array_equal(work.trainer.weights(), BASE)
    assert f"{3 * TOKENS} tokens of work are lost" in work.progress.trouble
    assert work.progress.lost_tokens == 3 * TOKENS
    step(work, 1)
    done = work.mark().work
    assert (done.steps, done.tokens, done.life) == (1, TOKENS, 1)
    assert done.trace[0].sample_start == (3 + STUCK_STEPS) * BATCH, "no sample is trained twice"


def test_what_was_handed_in_before_a_return_may_be_settled_and_takes_nothing_from_what_came_after() -> None:
    work, new = begun(), base(1, BASE + np.float32(0.5))
    step(work, 3)
    mark = work.mark().work
    blow_up(work)
    step(work, 2)
    x = work.trainer.weights()
    work.rebase(new, mark)
    assert np.array_equal(work.trainer.weights(), new.weights + (x - BASE))
    assert work.mark().work.steps == 2


def test_after_a_move_the_trainer_goes_back_to_the_new_revision() -> None:
    work, new = begun(), base(1, BASE + np.float32(0.001))
    step(work, 3)
    work.rebase(new, None)
    blow_up(work)
    assert np.array_equal(work.trainer.weights(), new.weights)


def test_work_that_is_no_good_can_be_given_up() -> None:
    work = begun()
    step(work, 2)
    work.give_up("its norm is absurd", work.mark())
    assert np.array_equal(work.trainer.weights(), BASE)
    assert work.trainer.optimizer_state().steps == 0
    assert "its norm is absurd" in work.progress.trouble


def test_what_is_trained_after_a_rollback_is_not_given_up_for_what_was_trained_before() -> None:
    work = begun()
    step(work, 2)
    old = work.mark()
    work.drop("the run was rolled back", fresh=True)
    work.begin(base(), stream(Stream()))
    step(work, 1)
    before = work.trainer.weights()
    work.give_up("its norm is absurd", old)
    assert np.array_equal(work.trainer.weights(), before)
    assert work.progress.steps == 1


def test_progress_has_the_median_speed() -> None:
    ticks = iter(range(10_000))
    work = RoundWork(Trainer(SPEC, SHARD, now_s=lambda: float(next(ticks))), SPEC.inner)
    work.begin(base(), stream(Stream()))
    step(work, 4)
    assert work.progress == replace(
        work.progress,
        tokens_per_s=float(TOKENS),
        tokens=4 * TOKENS,
        training_s=4.0,
        work_tokens=4 * TOKENS,
        steps=4,
    )
