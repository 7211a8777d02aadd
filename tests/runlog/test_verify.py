"""``verify_run``: passes on a whole run, and names the object of which a single bit was changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import keys
from common.errors import Rejected
from common.model.layout import weights_hash
from common.runlog.commands import abort_command, pause_command, resume_command, rollback_command
from common.runlog.entries import Paused, Resumed, RolledBack
from common.runlog.materialise import materialise
from common.runlog.proving import VerifyError
from common.runlog.remerge import rebuild, remerge
from common.runlog.rules import ORDERED
from common.runlog.verify import verify_run
from common.spec import spec_hash
from common.store.memory import MemoryStore
from common.units import Revision, RoundId, Sha256, ShardId, sha256_hex
from tests.runlog.support import ALICE, BOB, MINERS, OWNER, STRANGER, aborted, opened, slot, small_spec, steady
from tests.runlog.world import World, begin_world, churned_world, copy_store, eventful_world


@lru_cache(maxsize=2)
def world(num_shards: int = 1) -> World:
    """The run that all tests look at; they change copies of its store only."""
    return eventful_world(num_shards, momentum=0.9 if num_shards > 1 else 0.0)


def found_wrong(store: MemoryStore, spec_sha256: Sha256 | None = None) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify_run(store, "tiny", spec_sha256)
    assert str(caught.value).count(caught.value.key) == 1, "an error names its object once"
    return caught.value


def keys_of(kind: str, w: World) -> list[str]:
    listed = [(info.key, keys.parse_key("tiny", info.key)) for info in w.store.list("runs/tiny/")]
    return [key for key, parts in listed if parts is not None and parts.kind == kind]


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_whole_run_passes_and_the_report_counts_what_was_checked(num_shards: int) -> None:
    w, said = world(num_shards), list[str]()
    report = verify_run(w.store, "tiny", spec_hash(w.spec), said.append)
    assert report.state == w.state
    assert report.merges == 3 * num_shards
    assert dict(report.voids) == {"stale_term": 1}
    assert report.entries == w.state.next_seq
    assert len(report.absent) == 1
    assert {keys.parse_key("tiny", key).kind for key in report.unreferenced} == {"delta", "manifest"}  # type: ignore[union-attr]
    assert len(report.unreferenced) == 2
    assert sum(report.objects.values()) == len(list(w.store.list("")))
    assert report.objects["snapshot"] == 2 * num_shards
    assert len(said) == 5
    assert report.suspicious == {}
    assert report.unreported == (0, 1, 2), "only the last round has a report"
    assert report.lease


@pytest.mark.parametrize("kind", ["spec", "lease", "log", "delta", "manifest", "update", "snapshot", "report"])
@pytest.mark.parametrize("committed_hash", [True, False])
def test_every_object_of_each_kind_is_named_when_a_bit_flips(kind: str, committed_hash: bool) -> None:
    """Each object once, at a place that goes through the object from one to the next."""
    w = world()
    expected = spec_hash(w.spec) if committed_hash else None
    found = keys_of(kind, w)
    assert found
    for index, key in enumerate(found):
        store = copy_store(w.store)
        store.corrupt(key, lambda body, index=index: _flip(body, index * 7919 + 3, index % 8))
        assert found_wrong(store, expected).key == key


@steady(150)
@given(st.data())
def test_any_bit_of_any_object(data: st.DataObject) -> None:
    w = world()
    key = data.draw(st.sampled_from([info.key for info in w.store.list("runs/tiny/")]))
    size = len(w.store.get(key, max_bytes=1 << 30).body)
    place, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7))
    store = copy_store(w.store)
    store.corrupt(key, lambda body: _flip(body, place, bit))
    assert found_wrong(store, spec_hash(w.spec)).key == key


def test_signatures_of_the_lease_and_of_the_last_entry() -> None:
    """These two are covered by their own signature only: no hash and no later entry names them."""
    w = world()
    last = keys.log_key("tiny", w.state.next_seq - 1)
    for key in (keys.lease_key("tiny"), last):
        body = w.store.get(key, max_bytes=1 << 20).body
        for place in range(len(body) - 140, len(body), 11):
            store = copy_store(w.store)
            store.corrupt(key, lambda _, body=body, place=place: _flip(body, place, place % 2))
            assert found_wrong(store).key == key


@pytest.mark.parametrize("kind", ["spec", "log", "delta", "manifest", "update", "snapshot"])
def test_a_missing_object_is_named(kind: str) -> None:
    w = world()
    report = verify_run(w.store, "tiny")
    for key in keys_of(kind, w):
        if key in report.unreferenced or _is_rejected(w, key) or key == keys_of("log", w)[-1]:
            continue
        store = copy_store(w.store)
        store.delete(key)
        assert found_wrong(store).key == key


def test_a_manifest_without_its_delta_is_wrong_even_if_nothing_refers_to_it() -> None:
    w = world()
    left_over = verify_run(w.store, "tiny").unreferenced
    store = copy_store(w.store)
    delta = next(key for key in left_over if key.endswith(".delta"))
    store.delete(delta)
    assert found_wrong(store).key == delta


def test_wrong_bytes_that_came_in_parts_are_told_unless_a_plan_accepted_them(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    left_over = next(key for key in verify_run(w.store, "tiny").unreferenced if key.endswith(".delta"))
    accepted = next(key for key in keys_of("delta", w) if key != left_over and not _is_rejected(w, key))
    monkeypatch.setattr("common.runlog.leftovers.PART_BYTES", 1)
    for key, refused in ((left_over, True), (accepted, False)):
        store = copy_store(w.store)
        store.corrupt(key, lambda body: _flip(body, 0, 0))
        if refused:
            assert verify_run(store, "tiny").refused == (key,)
        else:
            assert found_wrong(store).key == key


def _stranger(w: World) -> tuple[str, bytes]:
    return "runs/tiny/notes.txt", b"hello"


def _other_hash(w: World) -> tuple[str, bytes]:
    return keys.delta_key("tiny", w.state.next_round, ShardId(0), STRANGER.hotkey, Sha256("0" * 64)), b"x"


def _slot_behind_a_gap(w: World) -> tuple[str, bytes]:
    return keys.log_key("tiny", w.state.next_seq + 1), slot(w.state, opened(w.state), ALICE, spec=w.spec)


def _wrong_prev(w: World) -> tuple[str, bytes]:
    body = slot(w.state, opened(w.state), ALICE, spec=w.spec, prev=Sha256("1" * 64))
    return keys.log_key("tiny", w.state.next_seq), body


def _foreign_report(w: World) -> tuple[str, bytes]:
    own = keys_of("report", w)[0]
    return own.replace(BOB.hotkey, ALICE.hotkey), w.store.get(own, max_bytes=1 << 20).body


def _moved_manifest(w: World) -> tuple[str, bytes]:
    own, other = keys_of("manifest", w)[:2]
    return other, w.store.get(own, max_bytes=1 << 20).body


@pytest.mark.parametrize(
    "addition", [_stranger, _other_hash, _slot_behind_a_gap, _wrong_prev, _foreign_report, _moved_manifest]
)
def test_an_object_that_does_not_belong_is_named(addition: Callable[[World], tuple[str, bytes]]) -> None:
    w = world()
    key, body = addition(w)
    store = copy_store(w.store)
    store.put(key, body)
    wrong = found_wrong(store)
    expected = keys.log_key("tiny", w.state.next_seq) if addition is _slot_behind_a_gap else key
    assert wrong.key == expected


@pytest.mark.parametrize(
    "lie",
    [{"committed": False}, {"revision": 2}, {"members": ()}],
)
def test_a_report_that_contradicts_the_log_is_named(lie: dict[str, object]) -> None:
    w = eventful_world()
    key = w.report(**lie)
    assert found_wrong(w.store).key == key


def test_a_report_of_an_aborted_round_must_say_so() -> None:
    w = eventful_world()
    key = w.report(1, revision=1, committed=True)
    assert found_wrong(w.store).key == key
    w.store.delete(key)
    w.report(1, revision=1, committed=False, members=())
    assert verify_run(w.store, "tiny").unreported == (0, 2)


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_cut_log_is_given_away_by_what_followed_from_it(cut: int) -> None:
    """Of the last slots ``cut`` were taken away and nothing else; the first missing one is named."""
    w, store = world(), copy_store(world().store)
    first = w.state.next_seq - cut
    for seq in range(first, w.state.next_seq):
        store.delete(keys.log_key("tiny", seq))
    assert found_wrong(store).key == keys.log_key("tiny", first)


def test_a_cut_together_with_all_that_tells_of_it_is_not_provable_but_an_update_is_suspicious() -> None:
    w, store = world(), copy_store(world().store)
    store.delete(keys.log_key("tiny", w.state.next_seq - 1))
    for key in keys_of("report", w):
        store.delete(key)
    report = verify_run(store, "tiny")
    (key,) = report.suspicious
    assert keys.parse_key("tiny", key).kind == "update"  # type: ignore[union-attr]
    assert "the log may be cut" in report.suspicious[key]


def test_an_update_beside_the_committed_one_is_suspicious_and_one_of_an_aborted_plan_is_not() -> None:
    w, store = world(), copy_store(world().store)
    for round_id in (0, 1):
        store.put(keys.update_key("tiny", RoundId(round_id), ShardId(0), sha256_hex(b"other")), b"other")
    report = verify_run(store, "tiny")
    assert list(report.suspicious) == [keys.update_key("tiny", RoundId(0), ShardId(0), sha256_hex(b"other"))]
    assert len(report.unreferenced) == 2 + len(verify_run(w.store, "tiny").unreferenced)


def test_a_snapshot_of_a_revision_that_the_log_does_not_know_names_the_missing_slot() -> None:
    w, store = world(), copy_store(world().store)
    key = keys.snapshot_key("tiny", w.state.next_revision, ShardId(0), sha256_hex(b"weights"))
    store.put(key, b"weights")
    assert found_wrong(store).key == keys.log_key("tiny", w.state.next_seq)


@pytest.mark.parametrize("lie", [{"partitions": (sha256_hex(b"x"),)}, {"base_revision": 0, "samples": ()}])
def test_a_merged_submission_whose_manifest_lies_is_named(lie: dict[str, object]) -> None:
    w = eventful_world()
    w.append(opened(w.state))
    liar = w.submit(MINERS[0], 0, lie=lie)
    w.commit(w.freeze(liar, *(w.submit(miner, 0) for miner in MINERS[1:])))
    assert found_wrong(w.store).key == keys.manifest_key("tiny", RoundId(4), ShardId(0), liar.hotkey, liar.delta.sha256)


def test_late_and_adopted_deltas_redone_plans_and_a_pause_are_proved() -> None:
    w = churned_world()
    report = verify_run(w.store, "tiny")
    assert report.merges == w.state.head == 3
    assert report.objects["command"] == 1
    assert report.suspicious == {}
    assert report.unreferenced == ()
    assert report.replaced == 0


def test_drips_that_were_replaced_are_counted_and_not_told_one_by_one() -> None:
    w = churned_world()
    w.append(opened(w.state))
    w.submit(MINERS[1], 0)  # no plan names anything of this miner
    final = w.submit(MINERS[0], 0)
    drip = sha256_hex(b"drip")
    w.store.put(keys.delta_key("tiny", final.round, ShardId(0), final.hotkey, drip), b"drip")
    w.commit(w.freeze(final))
    report = verify_run(w.store, "tiny")
    assert report.replaced == 1
    assert {keys.parse_key("tiny", key).hotkey for key in report.unreferenced} == {MINERS[1].hotkey}  # type: ignore[union-attr]


def test_a_resumption_that_nobody_ordered_is_named() -> None:
    w = churned_world()
    (info,) = w.store.list(keys.commands_prefix("tiny"))
    store = copy_store(w.store)
    store.delete(info.key)
    assert found_wrong(store).key == info.key
    w.pause_for_failures()
    assert w.state.paused is not None
    earlier = replace(w.state, paused=replace(w.state.paused, seq=3))
    order = w.order(resume_command(earlier, OWNER, 7))
    w.append(Resumed(order))
    assert found_wrong(w.store).key == keys.command_key("tiny", order)


def test_every_branch_is_merged_again_and_every_order_is_proved() -> None:
    w = begin_world(small_spec(momentum=0.9))
    for _ in range(3):
        w.run_round()
    w.append(opened(w.state))
    w.append(replace(aborted(w.state, ORDERED), command_sha256=w.order(abort_command(w.state, OWNER, 1))))
    w.append(Paused(ORDERED, ("the owner orders it",), w.order(pause_command(w.state, OWNER, 1))))
    w.roll_back(1)
    w.append(Resumed(w.order(resume_command(w.state, OWNER, 1)), cold=True))
    w.run_round()
    w.run_round()
    w.roll_back(3)
    w.run_round()
    report = verify_run(w.store, "tiny")
    assert report.merges == 6
    assert report.objects["command"] == 5
    assert [node.parent for node in w.state.revisions.values()] == [None, 0, 1, 2, 1, 4, 3]
    node = w.state.revisions[Revision(4)]
    assert node.from_reset, "the outer state of the rollback's revision is not carried on"
    lied = replace(node, from_reset=False)
    base = rebuild(w.reader, w.state, Revision(1), ShardId(0))[0]
    with pytest.raises(Rejected, match="merge_mismatch"):
        remerge(w.reader, w.state, lied, base)
    for revision in w.state.revisions:
        built = materialise(w.reader, w.state, revision).shards[0]
        assert weights_hash(built.weights) == w.state.revisions[revision].shards[0].weights_sha256


def test_a_rollback_that_the_owner_did_not_order_is_named() -> None:
    w = begin_world(small_spec())
    w.run_round()
    w.run_round()
    order = w.order(rollback_command(w.state, OWNER, 1, Revision(1)))
    w.append(RolledBack(Revision(0), order))
    assert found_wrong(w.store).key == keys.command_key("tiny", order)


def test_a_missing_lease_is_said() -> None:
    store = copy_store(world().store)
    store.delete(keys.lease_key("tiny"))
    assert not verify_run(store, "tiny").lease


def test_another_spec_than_the_one_on_chain_is_named() -> None:
    w = world()
    assert found_wrong(w.store, spec_hash(replace(w.spec, seed=1))).key == keys.spec_key("tiny")


def test_a_run_that_is_not_there_is_said() -> None:
    assert found_wrong(MemoryStore()).key == keys.log_key("tiny", 0)


def test_a_leader_that_commits_other_weights_than_its_plan_makes_is_named() -> None:
    w = eventful_world()
    memory = w.memory[ShardId(0)]
    w.memory[ShardId(0)] = replace(memory, weights=memory.weights + memory.weights)
    w.run_round()
    wrong = found_wrong(w.store)
    assert wrong.key == keys.log_key("tiny", w.state.next_seq - 1)
    assert "merging shard 0 again" in wrong.what


def _flip(body: bytes, place: int, bit: int) -> bytes:
    place %= len(body)
    return body[:place] + bytes([body[place] ^ (1 << bit)]) + body[place + 1 :]


def _is_rejected(w: World, key: str) -> bool:
    """The plan of the third round rejects the third miner; a rejection explains what is missing."""
    parts = keys.parse_key("tiny", key)
    assert parts is not None
    return parts.round_id == 2 and parts.hotkey == MINERS[2].hotkey
