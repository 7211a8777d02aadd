"""A rollback that comes at a bad moment: into a download, into the making of a delta, or while the miner is asleep.

Whatever it was at, it goes on from the right head with the right hash, nothing that it made before the rollback is
handed in after it, and what it trained after it is all there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import miner.delta
import miner.follower
import miner.session
from common.codec.container import decode
from common.codec.params import delta_params
from common.records import Manifest
from miner.work import RoundWork
from tests.miner.leader import PATIENCE_S, Leader, Seen
from tests.miner.mining import Miner, beating, hand_in, holds, ledger_of, mining, settles, trained


def commit_without_it(leader: Leader) -> None:
    """One revision more, of which the miner has no part; a round may be open already."""
    if leader.world.state.open_round is None:
        leader.open_round()
    leader.world.commit(leader.freeze())


def update_of(leader: Leader, revision: int) -> str:
    update = leader.world.state.revisions[revision].shards[0].update  # type: ignore[index]
    assert update is not None
    return f"{update.sha256}.update"


def to_revision_1(leader: Leader) -> None:
    """The miner's first round, merged; the next one is open."""
    hand_in(leader)
    leader.commit()
    leader.open_round()
    leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
    leader.wait_until(trained(1))  # type: ignore[arg-type]


def of_new_work_alone(leader: Leader, manifest: Manifest) -> bool:
    """Made on the head, of samples of rounds after the rollback, from the first on."""
    state = leader.world.state
    restart = state.restarts[-1]
    parts = manifest.samples
    new = {node.revision for node in state.lineage(state.head)}
    return (
        manifest.base_revision == manifest.samples[0].base_revision == state.head
        and manifest.base_sha256 == state.head_node.sha256
        and all(part.round >= restart.round and part.base_revision in new for part in parts)
        and parts[0].start == 0
        and manifest.tokens == sum(part.count for part in parts) * leader.spec.data.seq_len
    )


def goes_on(leader: Leader, folder: Path, miner: Miner) -> None:
    """From the head, whose round is open: a submission of new work alone, that is all of it, and its revision."""
    before = len(leader.submissions)
    leader.wait_until(holds(leader, leader.world.state.head))  # type: ignore[arg-type]
    hand_in(leader)
    sent = leader.seen.manifests[-1]
    assert of_new_work_alone(leader, sent)
    assert all(of_new_work_alone(leader, one.manifest) for one in list(leader.submissions.values())[before:])
    live = ledger_of(leader, folder).live
    assert {one.sent.manifest.base_revision for one in live} == {sent.base_revision}
    leader.commit()
    settles(leader, folder, leader.world.state.head)
    miner.stop()
    assert miner.error is None
    after, mine = ledger_of(leader, folder), live[-1]
    params = delta_params(leader.spec.codec, sent.base_revision)
    said = decode(mine.sent.delta, expect=params, count=len(mine.work.moved))
    assert np.array_equal(after.account.residual, mine.work.moved - said), "nothing older is in its account"
    assert after.account.pending is None


@contextmanager
def held_in_the_encoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Deltas are not done before the event of the block is set; the block begins without one under way."""
    go_on, encode = threading.Event(), miner.delta.encode

    def slowly(*words: object) -> object:
        go_on.wait(PATIENCE_S)
        return encode(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(miner.delta, "encode", slowly)
    try:
        yield go_on
    finally:
        go_on.set()


def telling(action: Callable[..., object], done: threading.Event) -> Callable[..., object]:
    """``action``, which sets ``done`` at its end."""

    def told(*words: object) -> object:
        result = action(*words)
        done.set()
        return result

    return told


@pytest.mark.parametrize("target", [0, 1])
def test_a_rollback_while_the_old_head_is_on_its_way(leader: Leader, tmp_path: Path, target: int) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        to_revision_1(leader)
        with leader.holding(".update"):
            commit_without_it(leader)
            leader.wait_until(lambda seen: any(update_of(leader, 2) in path for path in seen.held))
            leader.world.roll_back(target)
            leader.open_round()
            leader.forget()
            leader.wait_until(beating)
        goes_on(leader, tmp_path, miner)
    assert leader.world.state.head == 3


@pytest.mark.parametrize(("target", "more"), [(1, 0), (2, 1), (3, 0), (3, 2)])
def test_a_download_that_outlasts_the_rollback(leader: Leader, tmp_path: Path, target: int, more: int) -> None:
    """Of revision 2, while the miner sees nothing of the log: not of revision 3, of the way back, of what came then."""
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        to_revision_1(leader)
        with leader.holding(".update"):
            commit_without_it(leader)
            old = update_of(leader, 2)
            leader.wait_until(lambda seen: any(old in path for path in seen.held))
            with leader.holding("/log/"):
                leader.wait_until(lambda seen: any("/log/" in path for path in seen.held))
                commit_without_it(leader)
                leader.world.roll_back(target)
                for _ in range(more):
                    commit_without_it(leader)
                leader.open_round()
            leader.wait_until(turned(leader))  # type: ignore[arg-type]
        goes_on(leader, tmp_path, miner)
    assert leader.world.state.head == 4 + more


def turned(leader: Leader) -> object:
    """It has honoured the rollback: it fetches the head with nothing to train on, or trains on the head that it had."""
    opened = leader.world.state.open_round
    assert opened is not None

    def check(seen: Seen) -> bool:
        fetching = any(f"fetching revision {leader.world.state.head}" in beat.note for beat in seen.beats)
        return fetching or trained(opened.round)(seen)  # type: ignore[operator]

    return check


@pytest.mark.parametrize("target", [0, 1])
def test_a_rollback_while_a_delta_is_being_made(
    leader: Leader, tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On revision 1, which may be the very one that the run goes back to."""
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        to_revision_1(leader)
        with held_in_the_encoder(monkeypatch) as go_on:
            leader.forget()
            leader.order = "submit"
            leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].round == 1)
            leader.abort()
            leader.world.roll_back(target)
            leader.open_round()
            leader.wait_until(trained(2))  # type: ignore[arg-type]
            leader.order = "submit"  # while it still makes the delta of before
            go_on.set()
            leader.order = "train"
        goes_on(leader, tmp_path, miner)
    assert [manifest for manifest in leader.seen.manifests if manifest.round == 1] == []


@pytest.mark.parametrize(("target", "more"), [(0, 0), (1, 2), (2, 0)])
def test_who_sleeps_through_a_rollback(leader: Leader, tmp_path: Path, target: int, more: int) -> None:
    """Handed in on revision 1, it hears neither of its merge, nor of the way back, nor of what was made then."""
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        to_revision_1(leader)
        hand_in(leader)
        with miner.asleep():
            leader.commit()
            commit_without_it(leader)
            leader.world.roll_back(target)
            for _ in range(more):
                commit_without_it(leader)
            leader.open_round()
            leader.forget()
        goes_on(leader, tmp_path, miner)
    assert leader.world.state.head == 4 + more


def test_what_was_deferred_before_a_rollback_that_it_slept_through_is_void(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        to_revision_1(leader)
        leader.let_uploads.clear()
        leader.forget()
        leader.order = "submit"
        leader.wait_until(lambda seen: bool(seen.manifests))
        void = leader.seen.manifests[-1].delta.sha256
        leader.world.commit(leader.freeze(*leader.last("deferred")))
        leader.open_round()
        leader.wait_until(holds(leader, 2))  # type: ignore[arg-type]
        with miner.asleep():
            leader.abort()
            leader.world.roll_back(2)
            leader.open_round()
            leader.forget()
        leader.wait_until(trained(3))  # type: ignore[arg-type]
        leader.let_uploads.set()
        goes_on(leader, tmp_path, miner)
    assert void not in leader.seen.completed
    assert void not in leader.complete


def test_a_round_that_is_aborted_while_the_last_step_ends_takes_nobody_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without overlap the miner ends its step before it hands in; meanwhile the round may be over."""
    in_step, go_on, step = threading.Event(), threading.Event(), RoundWork.step
    go_on.set()

    def slowly(self: RoundWork) -> object:
        in_step.set()
        go_on.wait(PATIENCE_S)
        return step(self)

    monkeypatch.setattr(RoundWork, "step", slowly)
    with Leader(tmp_path, overlap=False) as leader:
        leader.open_round()
        with mining(leader, tmp_path) as miner:
            to_revision_1(leader)
            go_on.clear()
            in_step.clear()
            in_step.wait(PATIENCE_S)
            leader.order = "submit"
            leader.wait_until(lambda seen: "closes round 1" in seen.beats[-1].note)
            leader.abort()
            leader.world.roll_back(0)
            leader.forget()
            leader.wait_until(lambda seen: seen.quiet_beats >= 3)
            go_on.set()
            leader.open_round()
            goes_on(leader, tmp_path, miner)


def test_a_newcomer_that_has_just_fetched_the_old_head_begins_on_the_new_one(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come in the same moment, so that it learns of the rollback before it has taken over what it fetched."""
    fetched, read = threading.Event(), threading.Event()
    monkeypatch.setattr(miner.session, "bring_to_head", telling(miner.session.bring_to_head, fetched))
    monkeypatch.setattr(miner.follower, "catch_up", telling(miner.follower.catch_up, read))
    commit_without_it(leader)
    with mining(leader, tmp_path) as process, ExitStack() as updates, ExitStack() as log:
        updates.enter_context(leader.holding(".update"))
        leader.wait_until(lambda seen: bool(seen.held))
        log.enter_context(leader.holding("/log/"))
        leader.wait_until(lambda seen: any("/log/" in path for path in seen.held))
        with process.asleep():
            leader.world.roll_back(0)
            leader.open_round()
            updates.close()
            assert fetched.wait(PATIENCE_S)
            read.clear()
            log.close()
            assert read.wait(PATIENCE_S)
        goes_on(leader, tmp_path, process)
