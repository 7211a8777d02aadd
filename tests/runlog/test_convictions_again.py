"""What `brigade run verify` does about any number of convictions: one replay, one merge of a revision, and a bound."""

from __future__ import annotations

from collections import Counter

from common import keys
from common.convictions import Conviction, MergedWrongly, sign_conviction
from common.runlog.heard import MOST_OF_A_SIGNER
from common.runlog.remerge import Difference
from common.runlog.verify import verify_run
from common.spec import SCHEMA
from common.store.memory import MemoryStore
from common.store.reader import StoreReader
from common.units import Revision, RoundId, Sha256, ShardId, sha256_hex
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
    lies = [accuse(world, 1 + number % 2, f"lie {number}") for number in range(MOST_OF_A_SIGNER + more)]
    for lie in lies:
        lay_down(store, lie)
    report = verify_run(store, "tiny")
    assert len(report.convictions) == MOST_OF_A_SIGNER
    assert dict(report.unheard) == {ALICE.hotkey: more}
    # The newest are those that stay.
    gone = len([lie for lie in lies if lie.seq == lies[0].seq]) - more
    assert Counter(one.seq for one in report.convictions)[lies[0].seq] == gone

    reads: Counter[str] = Counter()
    store.before = lambda operation, key: reads.update([key])
    place = Place("tiny", StoreReader(store), store, None)
    lines = told_again(place, report.convictions, report.unheard)
    assert len(lines) == MOST_OF_A_SIGNER + 1
    assert all("its signer has to answer for it" in line for line in lines[:-1])
    assert lines[-1] == f"not looked at: {more} older convictions said by validator {ALICE.hotkey}"
    # A slot is read by the replay, again if it is void, and by the merge whose plan it is: never once for each lie.
    assert max(reads.values()) < 8


def test_nothing_is_read_where_nobody_is_accused() -> None:
    store = copy_store(eventful_world().store)
    report = verify_run(store, "tiny")

    def never(operation: str, key: str) -> None:
        raise AssertionError(key)

    store.before = never
    assert told_again(Place("tiny", StoreReader(store), store, None), report.convictions, report.unheard) == []
    assert BOB.hotkey not in report.unheard
