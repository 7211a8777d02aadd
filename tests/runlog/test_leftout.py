"""When a plan convicts its leader of leaving out a receipted submission, and every honest history that must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.records import Receipt, StoredSubmission
from common.runlog.entries import Entry, PlanMember, RoundFrozen, RoundOpened
from common.runlog.leftout import judge
from common.units import Hotkey, Revision, RoundId, Sha256
from tests.runlog.support import MINERS, after, led, member, opened
from tests.support.submissions import manifest_of, record_of

LEADER, HEIR = Hotkey("5Leader"), Hotkey("5Heir")
MINER, OTHER = "5Miner", "5Other"


def named(hotkey: str, decision: str = "accepted", shard: int = 0, base: int = 2, round_id: int = 3) -> PlanMember:
    state = after(led(), opened)
    changes = {"hotkey": Hotkey(hotkey), "base_revision": Revision(base), "round": RoundId(round_id)}
    return member(state, MINERS[0], shard, decision=decision, **changes)


def receipt(
    signer: Hotkey = LEADER, term: int = 4, round_id: int = 3, base: int = 2, shard: int = 0
) -> StoredSubmission:
    manifest = manifest_of(MINER, round_id=round_id, base=base, shard=shard)
    record = record_of(manifest, "manifest")
    word = Receipt(
        schema=1,
        run=manifest.run,
        signer=signer,
        round=manifest.round,
        shard=manifest.shard,
        hotkey=manifest.signer,
        manifest_sha256=record.sha256,
        delta_sha256=manifest.delta.sha256,
        term=term,
        received_ms=0,
    )
    return StoredSubmission(manifest, word, record, record_of(word, "receipt"))


def plan(*members: PlanMember, signer: Hotkey = LEADER, term: int = 4, attempt: int = 0) -> Entry:
    data = RoundFrozen(RoundId(3), Revision(2), attempt, 1.0, members)
    return Entry("demo", signer, 9, Sha256("0" * 64), term, "n", 0, "why", data, Sha256("1" * 64))


GUILTY = {
    "a plan that names others only": (receipt(), plan(named(OTHER))),
    "an empty plan": (receipt(), plan()),
    "the miner on another shard only": (receipt(), plan(named(MINER, shard=1))),
    "only what it sent late, for the base before": (receipt(), plan(named(MINER, base=1, round_id=2))),
}
INNOCENT = {
    "named and accepted": (receipt(), plan(named(MINER))),
    "named and rejected": (receipt(), plan(named(MINER, "rejected"))),
    "named and deferred": (receipt(), plan(named(MINER, "deferred"))),
    "another submission of its line, adopted from an aborted round, is named": (
        receipt(),
        plan(named(MINER, round_id=1)),
    ),
    "a takeover came between receipt and plan": (receipt(), plan(named(OTHER), signer=HEIR, term=5)),
    "the leader restarted between receipt and plan": (receipt(), plan(named(OTHER), term=5)),
    "the receipt is of a later term than the plan: the heir found the manifest in the bucket": (
        receipt(term=5),
        plan(named(OTHER)),
    ),
    "the heir's receipt, for a plan that the leader before it had made and the heir made again": (
        receipt(HEIR, term=5),
        plan(named(OTHER), signer=HEIR, term=5, attempt=1),
    ),
    "somebody who does not lead gave the receipt": (receipt(HEIR), plan(named(OTHER))),
    "a late submission's receipt is of the round it was made for": (receipt(round_id=2, base=1), plan(named(OTHER))),
    "adopted from an aborted round: its receipt is of that round": (receipt(round_id=1), plan(named(OTHER))),
    "made on another base than the plan's": (receipt(base=1), plan(named(OTHER))),
}


@pytest.mark.parametrize("case", GUILTY)
def test_only_a_broken_promise_convicts(case: str) -> None:
    judged = judge(*GUILTY[case])
    assert judged.guilty
    assert judged.why.startswith(f"{LEADER} left out {MINER}: the plan of round 3 (slot 9)")


@pytest.mark.parametrize("case", INNOCENT)
def test_no_honest_history_does(case: str) -> None:
    assert not judge(*INNOCENT[case]).guilty


def test_another_entry_convicts_nobody() -> None:
    entry = replace(plan(), data=RoundOpened(RoundId(3), Revision(2)))
    assert not judge(receipt(), entry).guilty
