"""A miner's process against a whole small run: rounds, restarts of everybody, and what it does when it is stopped."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from common.clock import SystemClock
from common.codec.container import decode
from common.codec.params import delta_params
from common.errors import SetupError
from common.merge import feedback as fb
from common.model.layout import run_layouts
from common.units import Hotkey
from common.wire import ErrorReply, Phase
from miner.agent import Agent, Ports, Settings
from miner.ledger import Ledger
from miner.state import StateFolder
from tests.miner.leader import MINER, NETUID, Leader, Seen
from tests.support.httpserver import Reply, ScriptedServer
from validator.intake import PASSING


class Miner:
    """One process's worth of agent, in a thread with a loop of its own."""

    def __init__(self, leader: Leader, folder: Path, allow_private: bool = True) -> None:
        self._leader = leader
        self.session = secrets.token_hex(16)
        self._settings = Settings(
            netuid=NETUID,
            folder=folder / "miner",
            cache=folder / "cache",
            device="cpu",
            threads=1,
            max_tokens_per_s=None,
            allow_private=allow_private,
        )
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Miner:
        self._thread.start()
        self._running.wait()
        return self

    def stop(self) -> None:
        """As SIGTERM does."""
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def kill(self) -> None:
        """As SIGKILL does: nothing is put away."""
        assert self._loop is not None
        assert self._main is not None
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._go())
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    async def _go(self) -> None:
        self._loop, self._main, self._stop = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        self._running.set()
        ports = Ports(
            self._leader.chain.port(),
            MINER,
            SystemClock(),
            sleep=lambda s: asyncio.sleep(min(s, 0.02)),
            session=self.session,
        )
        await Agent(self._settings, ports, self._stop).run()


@contextmanager
def mining(leader: Leader, folder: Path) -> Iterator[Miner]:
    """A miner that runs during the block, and the only one whose heartbeats the leader keeps."""
    miner = Miner(leader, folder)
    leader.watch(miner.session)
    miner.start()
    try:
        yield miner
    finally:
        if miner._thread.is_alive():
            miner.stop()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with Leader(tmp_path) as made:
        yield made


def ledger_of(leader: Leader, folder: Path) -> Ledger:
    """What is on the miner's disk."""
    state = next((folder / "miner").glob("tiny-*"))
    count = run_layouts(leader.spec.model, 1)[0].total
    return Ledger.open(leader.spec, StateFolder(state, leader.spec, MINER.hotkey, count), count)


def holds(leader: Leader, revision: int) -> object:
    sha256 = leader.world.state.revisions[revision].sha256  # type: ignore[index]

    def check(seen: Seen) -> bool:
        return any((beat.revision, beat.weights_sha256) == (revision, sha256) for beat in seen.beats)

    return check


def trained(round_id: int = 0, tokens: int = 1) -> object:
    """Of another round a restarted miner tells what it has pending."""

    def check(seen: Seen) -> bool:
        return any(beat.round == round_id and beat.round_tokens >= tokens for beat in seen.beats)

    return check


def delivered(seen: Seen) -> bool:
    return bool(seen.completed) and bool(seen.beats) and seen.beats[-1].phase is Phase.WAITING


def hand_in(leader: Leader) -> None:
    """Let the open round's work come."""
    current = leader.world.state.open_round
    assert current is not None
    leader.wait_until(trained(current.round))  # type: ignore[arg-type]
    leader.forget()
    leader.order = "submit"
    leader.wait_until(delivered)


def test_rounds_are_trained_handed_in_and_applied(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        for revision in (1, 2, 3):
            hand_in(leader)
            leader.commit()
            leader.open_round()
            leader.wait_until(holds(leader, revision))  # type: ignore[arg-type]
    assert [r.round for r in leader.world.state.revisions.values() if r.round is not None] == [0, 1, 2]


def test_what_was_merged_leaves_the_residual_and_the_rest_stays(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        pending = ledger_of(leader, tmp_path).pending
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        miner.stop()
    after = ledger_of(leader, tmp_path)
    assert pending is not None
    sent = decode(pending.delta, expect=delta_params(leader.spec.codec, 0), count=len(pending.target))
    assert np.array_equal(after.memory.feedback.residual, pending.target - sent)
    assert (after.memory.settled_round, after.pending) == (0, None)


@pytest.mark.parametrize("how", ["abort", "reject"])
def test_what_was_not_merged_stays_in_the_residual(leader: Leader, tmp_path: Path, how: str) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        pending = ledger_of(leader, tmp_path).pending
        if how == "abort":
            leader.abort()
        else:
            leader.commit(accept=False)
        leader.forget()
        leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].round is None)
        miner.stop()
    assert pending is not None
    assert np.array_equal(ledger_of(leader, tmp_path).memory.feedback.residual, pending.target)


def test_a_kill_after_handing_in_settles_by_the_log(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        hand_in(leader)
        miner.kill()
    pending = ledger_of(leader, tmp_path).pending
    leader.commit()
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(1))  # type: ignore[arg-type]
        miner.kill()
    assert pending is not None
    sent = decode(pending.delta, expect=delta_params(leader.spec.codec, 0), count=len(pending.target))
    assert np.array_equal(ledger_of(leader, tmp_path).memory.feedback.residual, pending.target - sent)


def test_a_kill_before_the_upload_sends_the_same_delta_after_the_restart(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="not_leader", message="not now")
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: seen.beats[-1].phase is Phase.UPLOADING)
        miner.kill()
    pending = ledger_of(leader, tmp_path).pending
    assert pending is not None
    leader.refuse.clear()
    with mining(leader, tmp_path):
        leader.wait_until(delivered)
    assert leader.seen.completed == [pending.manifest.delta.sha256]


def test_work_of_a_stopped_miner_goes_on_where_it_was(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained(tokens=320))  # type: ignore[arg-type]
        miner.stop()
    carried = ledger_of(leader, tmp_path).carried
    assert carried is not None
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        hand_in(leader)
    manifest = leader.seen.manifests[-1].manifest["body"]
    assert manifest["tokens"] >= carried.tokens >= 320
    assert manifest["sample_start"] == 0


def test_work_of_a_stopped_miner_is_not_lost_when_its_round_is_over(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        miner.stop()
    carried = ledger_of(leader, tmp_path).carried
    leader.commit()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        miner.stop()
    after = ledger_of(leader, tmp_path)
    assert carried is not None
    assert np.array_equal(after.memory.feedback.residual, carried.local)
    assert fb.norm(after.memory.feedback.residual) > 0


def test_a_new_leading_process_hears_of_the_delta_again(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        hand_in(leader)
        first = leader.seen.manifests[-1]
        leader.forget()
        leader.restart()
        leader.wait_until(delivered)
        assert leader.seen.manifests[-1] == first
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]


def test_training_and_work_survive_leader_and_storage(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.down = leader.store_down = True
        before = leader.seen.beats[-1].counters.tokens
        leader.forget()
        leader.wait_until(lambda seen: seen.unanswered >= 2)
        leader.down = False
        leader.wait_until(lambda seen: bool(seen.beats) and seen.beats[-1].counters.tokens > before)
        leader.order = "submit"
        leader.wait_until(lambda seen: any(beat.phase is Phase.UPLOADING for beat in seen.beats))
        leader.store_down = False
        leader.wait_until(delivered)
        leader.commit()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]


def test_heartbeats_go_on_during_training_and_upload(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: sum(beat.phase is Phase.TRAINING for beat in seen.beats) >= 3)
        leader.let_uploads.clear()
        leader.order = "submit"
        leader.wait_until(lambda seen: sum(beat.upload is not None for beat in seen.beats) >= 3)
        assert not leader.seen.uploads
        leader.let_uploads.set()
        leader.wait_until(delivered)
        numbers = [beat.seq for beat in leader.seen.beats]
        assert numbers == sorted(set(numbers))


def test_a_refused_submission_does_not_end_the_miner(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.refuse["/v1/submissions"] = ErrorReply(code="wrong_base", message="another base")
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        leader.wait_until(lambda seen: "wrong_base" in seen.beats[-1].note)
        leader.refuse.clear()
        leader.commit()
        leader.open_round()
        leader.wait_until(holds(leader, 1))  # type: ignore[arg-type]
        hand_in(leader)


def test_a_delta_that_arrived_broken_is_put_again(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.put_answers = [413]  # not the announced size
    leader.findings = sorted(PASSING)
    with mining(leader, tmp_path):
        hand_in(leader)
    assert len(leader.seen.completed) == len(PASSING) + 1
    assert len(leader.seen.uploads) == len(PASSING) + 1
    assert len({manifest.model_dump_json() for manifest in leader.seen.manifests}) == 1


def test_the_last_heartbeat_of_a_stopped_miner_says_that_it_goes(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        miner.stop()
    carried, last = ledger_of(leader, tmp_path).carried, max(leader.seen.beats, key=lambda beat: beat.seq)
    assert carried is not None
    assert (last.phase, last.round_tokens) == (Phase.DRAINING, carried.tokens)


def test_a_delivery_that_breaks_is_not_swallowed(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("miner.uplink.upload", broken)
    leader.open_round()
    with mining(leader, tmp_path) as miner:
        leader.wait_until(trained())  # type: ignore[arg-type]
        leader.order = "submit"
        miner.join()
    assert isinstance(miner.error, RuntimeError)
    assert ledger_of(leader, tmp_path).pending is not None, "the next start sends it"


def test_a_joiner_waits_while_a_round_closes(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    leader.order = "wait"
    with mining(leader, tmp_path):
        leader.wait_until(lambda seen: any("joining the next one" in beat.note for beat in seen.beats))
        assert not leader.seen.manifests
        leader.commit()
        leader.open_round()
        hand_in(leader)


def test_a_hotkey_without_a_seat_is_told_what_to_do(leader: Leader, tmp_path: Path) -> None:
    subnet = leader.chain.subnets[NETUID]
    subnet.neurons = [neuron for neuron in subnet.neurons if neuron.hotkey != Hotkey(MINER.hotkey)]
    miner = Miner(leader, tmp_path).start()
    miner.join()
    assert isinstance(miner.error, SetupError)
    assert "register it first" in str(miner.error)


def test_a_storage_at_a_private_address_needs_permission(leader: Leader, tmp_path: Path) -> None:
    miner = Miner(leader, tmp_path, allow_private=False).start()
    miner.join()
    assert isinstance(miner.error, SetupError)
    assert "127.0.0.1, no public address; --allow-private permits it" in str(miner.error)


def test_a_run_of_several_shards_is_refused_at_the_start(tmp_path: Path) -> None:
    with Leader(tmp_path, num_shards=2) as leader:
        miner = Miner(leader, tmp_path).start()
        miner.join()
    assert isinstance(miner.error, SetupError)
    assert "split into 2 shards" in str(miner.error)


def test_a_leader_can_not_send_a_delta_elsewhere(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with ScriptedServer(lambda request: Reply(200)) as elsewhere:
        leader.upload_base = elsewhere.url()
        with mining(leader, tmp_path):
            leader.wait_until(trained())  # type: ignore[arg-type]
            leader.order = "submit"
            leader.wait_until(lambda seen: "url_refused" in seen.beats[-1].note)
            leader.abort()
            leader.open_round()
            leader.upload_base = ""
            hand_in(leader)
        assert elsewhere.requests == []


def test_two_miners_in_one_folder_are_refused(leader: Leader, tmp_path: Path) -> None:
    leader.open_round()
    with mining(leader, tmp_path):
        leader.wait_until(trained())  # type: ignore[arg-type]
        other = Miner(leader, tmp_path).start()
        other.join()
    assert isinstance(other.error, SetupError)
    assert "another miner" in str(other.error)
