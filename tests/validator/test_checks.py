"""What the leader finds of a delta's bytes and a manifest's claims; an outage is nobody's fault."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from common.codec.container import encode
from common.codec.params import delta_params
from common.data.dataset import Dataset
from common.errors import Rejected, Retryable
from common.records import Manifest, ObjectRef, SampleRange
from common.units import ShardId, sha256_hex
from tests.validator.world import World
from validator.checks import Finding, check_bytes, check_claims, read_delta


@pytest.fixture
def opened(dataset: Dataset) -> World:
    """A world with an open round and a miner."""
    world = World(dataset)

    async def go() -> None:
        await world.begin(1)
        validator = world.validator()
        for _ in range(3):
            await validator.driver.step()

    asyncio.run(go())
    return world


def many(manifest: Manifest, count: int) -> SampleRange:
    return SampleRange(manifest.round, manifest.base_revision, 0, count)


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
        ({"tokens": 2**53 - 1, "steps": 2**50, "samples": (many(manifest, 2**51),)}, "bad_manifest"),
        ({"samples": (many(manifest, 10**9),)}, "bad_manifest"),
        ({"delta": dataclasses.replace(manifest.delta, size_bytes=1)}, "wrong_size"),
    ):
        assert check_claims(opened.spec, dataclasses.replace(manifest, **changes), count).code == code


def test_a_manifest_of_another_codec_does_not_decode(opened: World) -> None:
    miner = opened.miners[0]
    manifest, _ = miner.make(opened.log())
    count = opened.validator().board.counts()[ShardId(0)]
    wrong = encode(np.ones(count, dtype=np.float32), delta_params(opened.spec.codec, 1))
    reference = ObjectRef(sha256_hex(wrong), len(wrong))
    found = check_bytes(wrong, opened.spec, dataclasses.replace(manifest, delta=reference), count)
    assert found.code == "wrong_size", "the codec of another round makes another size"
