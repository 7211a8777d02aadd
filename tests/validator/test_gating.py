"""From submissions to plan members: every receipted one is named, rejections have codes, numbers are exact."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from common.codec.container import encode
from common.codec.params import delta_params
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.records import ObjectRef, Receipt, StoredSubmission, sign_manifest, sign_receipt
from common.runlog.entries import RoundFrozen
from common.runlog.rules import check_plan
from common.units import Revision, RoundId, ShardId, sha256_hex
from tests.support.specs import VALIDATOR
from tests.validator.world import WORK, Miner, World
from validator.checks import Finding, check_bytes, check_claims, read_delta
from validator.gating import Entrant, Judgement, judge
from validator.round.tokens import Seen, Terms
from validator.submissions import Submission

TERMS = Terms(target_tokens=100 * WORK, members=4, longest_s=60.0, slack=1.0, usual_rate=128.0)
"""A round whose target bounds nobody."""


@pytest.fixture
def opened(dataset: Dataset) -> World:
    """A world with an open round and four miners."""
    world = World(dataset)

    async def go() -> None:
        await world.begin(4)
        validator = world.validator()
        for _ in range(3):
            await validator.driver.step()

    asyncio.run(go())
    return world


def entrant(
    world: World, miner: Miner, received_ms: int, finding: Finding | None, support: float | None = None
) -> Entrant:
    manifest, _ = miner.make(world.log())
    record = sign_manifest(manifest, miner.signer)
    receipt = Receipt(
        1,
        "demo",
        VALIDATOR.hotkey,
        manifest.round,
        manifest.shard,
        manifest.signer,
        record.sha256,
        manifest.delta.sha256,
        1,
        received_ms,
    )
    stored = StoredSubmission(manifest, receipt, record, sign_receipt(receipt, VALIDATOR))
    return Entrant(Submission(stored, world.seat(miner.signer), 0.0, finding), Seen(1.0, True), support)


def judged(world: World, entrants: list[Entrant], terms: Terms = TERMS) -> Judgement:
    bodies = {miner.signer.hotkey: miner.make(world.log())[1] for miner in world.miners}
    counts = {ShardId(0): world.validator().board.counts()[ShardId(0)]}
    return judge(world.spec, Revision(0), entrants, counts, lambda found: bodies[found.manifest.signer], terms)


def test_every_submission_is_named_in_order_and_numbers_are_exact(opened: World) -> None:
    first, second, third, fourth = opened.miners
    entrants = [
        entrant(opened, first, 4, Finding()),
        entrant(opened, second, 3, Finding()),
        entrant(opened, third, 2, None),
        entrant(opened, fourth, 1, Finding("non_finite", "a value is not a number")),
    ]
    found = judged(opened, entrants)
    assert check_plan(opened.spec, RoundFrozen(RoundId(0), Revision(0), found.members)) == ""
    by_hotkey = {member.hotkey: member for member in found.members}
    assert by_hotkey[third.signer.hotkey].code == "not_uploaded"
    assert by_hotkey[fourth.signer.hotkey].code == "non_finite"
    accepted = by_hotkey[first.signer.hotkey]
    assert (accepted.decision, accepted.code, accepted.tokens) == ("accepted", "", WORK)
    assert float(np.float32(accepted.weight)) == accepted.weight
    assert float(np.float32(accepted.scale)) == accepted.scale
    assert (found.verdict.tokens, found.verdict.accepted, found.verdict.rejected) == (2 * WORK, 2, 2)


def test_tokens_beyond_time_and_evidence_do_not_count(opened: World) -> None:
    supports = (None, 1.0, 3.0, 8.0)
    entrants = [entrant(opened, m, 1, Finding(), times) for m, times in zip(opened.miners, supports, strict=True)]
    found = judged(opened, entrants, dataclasses.replace(TERMS, usual_rate=30.0))
    by_hotkey = {member.hotkey: member for member in found.members}
    tokens = [by_hotkey[miner.signer.hotkey].tokens for miner in opened.miners]
    assert tokens == [60, 60, 90, WORK]
    assert by_hotkey[opened.miners[0].signer.hotkey].tokens_claimed == WORK
    assert "60 of 128" in by_hotkey[opened.miners[0].signer.hotkey].reason
    assert found.watched[opened.miners[0].signer.hotkey] == (60, 1.0)


def test_of_two_copies_the_later_one_is_rejected(opened: World) -> None:
    first, second = opened.miners[:2]
    opened.trained = {
        (base, round_id, hotkey): next(iter(opened.trained.values())) for base, round_id, hotkey in opened.trained
    }
    own = first._trained(opened.log())
    for place in [(opened.log().head_node.sha256, 0, str(miner.signer.hotkey)) for miner in (first, second)]:
        opened.trained[place] = own
    entrants = [entrant(opened, first, 9, Finding()), entrant(opened, second, 5, Finding())]
    entrants += [entrant(opened, miner, 20, Finding()) for miner in opened.miners[2:]]
    by_hotkey = {member.hotkey: member for member in judged(opened, entrants).members}
    assert by_hotkey[first.signer.hotkey].code == "duplicate"
    assert by_hotkey[second.signer.hotkey].decision == "accepted"


def test_a_deleted_object_is_a_rejection_but_an_outage_decides_nothing(opened: World) -> None:
    entrants = [entrant(opened, opened.miners[0], 1, Finding())]
    counts = opened.validator().board.counts()

    def gone(_: Submission) -> bytes:
        raise Rejected("object_missing", "no object")

    def away(_: Submission) -> bytes:
        raise Retryable("no connection")

    assert judge(opened.spec, Revision(0), entrants, counts, gone, TERMS).members[0].code == "object_missing"
    with pytest.raises(Retryable):
        judge(opened.spec, Revision(0), entrants, counts, away, TERMS)


def test_without_submissions_there_is_nothing_to_merge(opened: World) -> None:
    found = judged(opened, [])
    assert (found.members, found.verdict.tokens, found.verdict.shards) == ((), 0, 0)


def test_bytes_that_are_not_as_announced_are_named(opened: World) -> None:
    miner = opened.miners[0]
    manifest, body = miner.make(opened.log())
    count = opened.validator().board.counts()[ShardId(0)]
    assert check_bytes(body, opened.spec, manifest, count).ok
    assert check_bytes(body + b"x", opened.spec, manifest, count).code == "wrong_size"
    assert check_bytes(bytes(len(body)), opened.spec, manifest, count).code == "checksum_mismatch"
    swapped = dataclasses.replace(manifest, partitions=manifest.partitions[::-1])
    assert check_bytes(body, opened.spec, swapped, count).code == "bad_partitions"


def test_only_facts_about_the_object_are_findings_and_outages_of_any_kind_are_waited_for(opened: World) -> None:
    manifest, body = opened.miners[0].make(opened.log())
    assert read_delta(opened.store, manifest) == Finding("not_uploaded", "there is no object at the announced key")
    opened.store.put(manifest.key, body + b"x")
    found = read_delta(opened.store, manifest)
    assert isinstance(found, Finding)
    assert found.code == "wrong_size"
    for code in ("access_denied", "refused", "bad_range", "not_supported"):

        def refuse(operation: str, key: str, code: str = code) -> None:
            raise Rejected(code, "the storage restarts")

        opened.store.before = refuse
        with pytest.raises(Retryable):
            read_delta(opened.store, manifest)


def test_claims_that_do_not_fit_each_other_are_refused(opened: World) -> None:
    manifest, _ = opened.miners[0].make(opened.log())
    count = opened.validator().board.counts()[ShardId(0)]
    assert check_claims(opened.spec, manifest, count).ok
    for changes, code in (
        ({"tokens": manifest.tokens + 1}, "bad_manifest"),
        ({"tokens": 0}, "bad_manifest"),
        ({"steps": manifest.steps - 1}, "bad_manifest"),
        ({"tokens": 2**53 - 1, "steps": 2**50, "sample_count": 2**51}, "bad_manifest"),
        ({"sample_count": 10**9}, "bad_manifest"),
        ({"delta": dataclasses.replace(manifest.delta, size_bytes=1)}, "wrong_size"),
    ):
        assert check_claims(opened.spec, dataclasses.replace(manifest, **changes), count).code == code  # type: ignore[arg-type]


def test_a_manifest_of_another_codec_does_not_decode(opened: World) -> None:
    miner = opened.miners[0]
    manifest, _ = miner.make(opened.log())
    count = opened.validator().board.counts()[ShardId(0)]
    wrong = encode(np.ones(count, dtype=np.float32), delta_params(opened.spec.codec, 1))
    reference = ObjectRef(sha256_hex(wrong), len(wrong))
    found = check_bytes(wrong, opened.spec, dataclasses.replace(manifest, delta=reference), count)
    assert found.code == "wrong_size", "the codec of another round makes another size"
