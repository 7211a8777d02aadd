"""What `brigade run verify` does about any number of convictions: one replay, one merge of a revision, and bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from common import keys
from common.convictions import Conviction, MergedWrongly, ReducedWrongly, sign_conviction
from common.runlog.heard import MOST_OF_A_SIGNER, MOST_OF_A_SLOT, Heard
from common.runlog.reduced import WrongMean
from common.runlog.remerge import Difference
from common.runlog.verify import verify_run
from common.spec import SCHEMA
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId, sha256_hex
from tests.runlog.support import ALICE, BOB
from tests.runlog.world import World, copy_store, eventful_world
from validator.audits.told import told_again
from validator.run_place import Place

SHA = Sha256("ab" * 32)


def accuse(world: World, revision: int, told: str) -> Conviction:
    """A lie about a right commit."""
    node = world.state.revisions[Revision(revision)]
    slot = world.store.get(keys.log_key("tiny", node.seq), max_bytes=1 << 20).body
    fault = MergedWrongly(node.revision, (Difference(ShardId(0), "weights", SHA, SHA),))
    leader = next(one.hotkey for one in reversed(world.state.leaders) if one.seq < node.seq)
    round_id = node.round or RoundId(0)
    return Conviction(
        SCHEMA,
        "tiny",
        ALICE.hotkey,
        leader,
        round_id,
        node.seq,
        sha256_hex(slot),
        told,
        merged_wrongly=fault,
    )


def lay_down(store: MemoryStore, conviction: Conviction) -> None:
    body = sign_conviction(conviction, ALICE).encode()
    store.put(keys.conviction_key("tiny", ALICE.hotkey, conviction.round, sha256_hex(body)), body)


def test_any_number_of_lies_costs_one_replay_and_few_merges_and_the_rest_is_counted() -> None:
    world = eventful_world()
    store, more = copy_store(world.store), 5
    two = [accuse(world, 1 + number % 2, f"lie {number}") for number in range(2 * MOST_OF_A_SLOT)]
    slots = range(10_000, 10_000 + MOST_OF_A_SIGNER + more - len(two))
    lies = [*two, *(replace(two[1], seq=seq) for seq in slots)]
    for lie in lies:
        lay_down(store, lie)
    report = verify_run(store, "tiny")
    assert len(report.convictions) == MOST_OF_A_SIGNER
    assert dict(report.unheard) == {ALICE.hotkey: more}
    # The newest are those that stay.
    assert Counter(one.seq for one in report.convictions)[two[0].seq] == MOST_OF_A_SLOT - more
    assert {*slots} <= {one.seq for one in report.convictions}

    reads: Counter[str] = Counter()
    store.before = lambda operation, key: reads.update([key])
    place = Place("tiny", StoreReader(store), store, None)
    lines = told_again(place, report.convictions, report.unheard)
    assert len(lines) == MOST_OF_A_SIGNER + 1
    assert all("its signer has to answer for it" in line for line in lines[:-1])
    assert lines[-1] == f"not looked at: {more} older convictions said by validator {ALICE.hotkey}"
    # A slot is read by the replay, again if it is void, and by the merge whose plan it is: never once for each lie.
    assert max(reads.values()) < 8


def said(signer: Hotkey, accused: str, seq: int, number: int = 0) -> Conviction:
    mean = WrongMean(Hotkey(accused), ShardId(0), number, SHA, SHA, SHA)
    fault = ReducedWrongly(mean, None, 0.0)
    return Conviction(SCHEMA, "tiny", signer, BOB.hotkey, RoundId(0), seq, SHA, "a lie", reduced_wrongly=fault)


def test_many_words_of_one_signer_about_a_slot_hide_no_other_accused_and_no_other_slot() -> None:
    heard = Heard()
    heard.add(said(ALICE.hotkey, "first", 7))
    for number in range(1000):
        heard.add(said(ALICE.hotkey, "liar", 7, number))
    heard.add(said(ALICE.hotkey, "last", 7))
    heard.add(said(ALICE.hotkey, "liar", 9))
    of_slot = Counter(one.accused for one in heard.kept if one.seq == 7)
    assert of_slot == {"first": 1, "liar": MOST_OF_A_SLOT - 2, "last": 1}
    assert [one.accused for one in heard.kept if one.seq == 9] == ["liar"]
    assert heard.unheard == {ALICE.hotkey: 1002 - MOST_OF_A_SLOT}


@pytest.mark.parametrize("late", [False, True])
def test_signers_that_flood_a_slot_together_hide_nobody_who_says_little_of_it(late: bool) -> None:
    flood = [said(Hotkey(f"flooder {one}"), "liar", 7, number) for one in range(40) for number in range(20)]
    alone = [said(ALICE.hotkey, "liar", 7)]
    heard = Heard()
    for one in [*flood, *alone] if late else [*alone, *flood]:
        heard.add(one)
    kept = Counter(one.signer for one in heard.kept)
    assert kept[ALICE.hotkey] == 1
    assert set(kept.values()) == {1}, "more signers than a slot may have: one of each"
    assert sum(heard.unheard.values()) == len(flood) + 1 - len(heard.kept)


def test_nothing_is_read_where_nobody_is_accused() -> None:
    store = copy_store(eventful_world().store)
    report = verify_run(store, "tiny")

    def never(operation: str, key: str) -> None:
        raise AssertionError(key)

    store.before = never
    assert told_again(Place("tiny", StoreReader(store), store, None), report.convictions, report.unheard) == []
    assert BOB.hotkey not in report.unheard
