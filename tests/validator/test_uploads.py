"""Uploads in parts as a leader handles them, over a store in memory and over a real S3 server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Rejected, Retryable
from common.identity import KeypairSigner
from common.records import Manifest, ObjectRef
from common.store.config import StorageConfig
from common.store.http import HttpClient
from common.store.memory import MemoryStore
from common.store.multipart import MAX_PARTS, MIN_PART_BYTES, UploadMissing, md5_hex, part_digests, part_range
from common.store.port import AccessDenied, ObjectStore, PresignedPut
from common.store.transfer import upload
from common.units import RoundId
from common.wire import (
    MAX_PARTS_A_REPLY,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MultipartTarget,
    UploadTarget,
)
from tests.support import submissions
from tests.support.faultproxy import FaultProxy
from tests.support.storage import fresh_prefix, quick_store, running_server
from validator.uploads import Uploads, abort_leftovers, arrived

MINER = KeypairSigner.from_uri("//Uploader")
BODY = random.Random(3).randbytes(2 * MIN_PART_BYTES + 1000)
DIGESTS = part_digests(BODY, MIN_PART_BYTES)
TINY_PART = 10


def manifest_of(body: bytes, round_id: int = 7) -> Manifest:
    return submissions.manifest_of(MINER.hotkey, round_id=round_id, base=0, final=True, body=body)


MANIFEST = manifest_of(BODY)


@dataclass(frozen=True)
class Desk:
    """A store, and a miner that puts to what it is given."""

    store: ObjectStore
    send: Callable[[PresignedPut, bytes], object]
    config: StorageConfig | None = None
    """Of a real server."""

    def leader(self) -> Uploads:
        """A fresh leading process."""
        return Uploads(self.store, MIN_PART_BYTES)

    def ask(self, again: bool = False) -> MultipartTarget:
        """Where the missing parts of ``BODY`` go, by a leader that knows nothing."""
        target = self.leader().target(MANIFEST, DIGESTS, 60, again=again)
        assert isinstance(target, MultipartTarget)
        return target

    def put(self, *numbers: int, body: bytes = BODY) -> None:
        """Put these parts, of those that are missing; without numbers all of them."""
        for part in self.ask().parts:
            if not numbers or part.number in numbers:
                start, end = part_range(len(body), MIN_PART_BYTES, part.number)
                self.send(PresignedPut(part.url, part.headers), body[start:end])

    def stored(self) -> bytes:
        return self.store.get(MANIFEST.key, max_bytes=len(BODY)).body


def in_memory(**kind: Any) -> Desk:
    store = MemoryStore(**kind)
    return Desk(store, lambda put, body: store.redeem_put(put.url, put.headers, body))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageConfig]:
    with running_server(tmp_path_factory.mktemp("seaweed")) as (_, config):
        yield config


@pytest.fixture(params=["memory", "s3"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    if request.param == "memory":
        yield in_memory()
        return
    config, http = fresh_prefix(request.getfixturevalue("server")), HttpClient()
    yield Desk(quick_store(config), lambda put, body: upload(put.url, put.headers, body, http=http), config)
    http.close()


def numbers(target: MultipartTarget) -> list[int]:
    return [part.number for part in target.parts]


def test_a_delta_of_one_part_goes_in_one_put(desk: Desk) -> None:
    body = BODY[:1000]
    manifest, leader = manifest_of(body), desk.leader()
    assert not arrived(desk.store, manifest)
    target = leader.target(manifest, (), 60)
    assert isinstance(target, UploadTarget)
    assert target.expires_in_s == 60
    for asked_s, signed_s in ((0, 1), (10**9, 7 * 24 * 3600)):
        bounded = leader.target(manifest, (), asked_s)
        assert bounded is not None
        assert bounded.expires_in_s == signed_s
    leader.finish(manifest)  # nothing to make
    desk.send(PresignedPut(target.url, target.headers), body)
    assert arrived(desk.store, manifest)
    assert leader.target(manifest, (), 60) is None
    assert isinstance(leader.target(manifest, (), 60, again=True), UploadTarget)


def test_a_larger_one_goes_in_parts_and_the_leader_joins_them(desk: Desk) -> None:
    assert numbers(desk.ask()) == [1, 2, 3]
    desk.put()
    assert desk.ask().missing == 0
    assert not arrived(desk.store, MANIFEST)
    desk.leader().finish(MANIFEST)
    assert arrived(desk.store, MANIFEST)
    assert desk.stored() == BODY
    assert desk.leader().target(MANIFEST, DIGESTS, 60) is None
    desk.leader().finish(MANIFEST)
    assert list(desk.store.list_uploads("")) == []


def test_another_leader_goes_on_where_the_first_was(desk: Desk) -> None:
    desk.put(2)
    assert numbers(desk.ask()) == [1, 3]
    with pytest.raises(Rejected, match=r"not_uploaded: 2 of 3 parts are missing: 1, 3"):
        desk.leader().finish(MANIFEST)
    desk.put()
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


def test_nothing_uploaded_is_said(desk: Desk) -> None:
    with pytest.raises(Rejected, match=r"not_uploaded: 3 of 3 parts"):
        desk.leader().finish(MANIFEST)


def test_a_corrupt_part_is_refused_and_stays_missing(desk: Desk) -> None:
    for broken, code in ((b"\0" * len(BODY), "checksum_mismatch"), (BODY[: 2 * MIN_PART_BYTES + 10], "size_mismatch")):
        with pytest.raises(Rejected, match=code):
            desk.put(3, body=broken)
    assert numbers(desk.ask()) == [1, 2, 3]


def test_an_object_that_was_found_wrong_is_replaced(desk: Desk) -> None:
    desk.store.put(MANIFEST.key, bytes(len(BODY)))
    assert desk.leader().target(MANIFEST, DIGESTS, 60) is None
    desk.leader().finish(MANIFEST)
    for part in desk.ask(again=True).parts:
        start, end = part_range(len(BODY), MIN_PART_BYTES, part.number)
        desk.send(PresignedPut(part.url, part.headers), BODY[start:end])
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


def test_leftovers_of_rounds_that_are_over_are_aborted(desk: Desk) -> None:
    for round_id in (5, 6, 7, 8):
        desk.leader().target(manifest_of(BODY, round_id), DIGESTS, 60)
    desk.store.create_multipart("runs/other/rounds/1/0/x.delta")
    desk.store.create_multipart("runs/demo/something")
    assert abort_leftovers(desk.store, "demo", RoundId(7)) == 2
    left = {begun.key for begun in desk.store.list_uploads("")}
    assert left == {
        manifest_of(BODY, 7).key,
        manifest_of(BODY, 8).key,
        "runs/other/rounds/1/0/x.delta",
        "runs/demo/something",
    }
    assert desk.leader().abort_leftovers("demo", RoundId(7)) == 0


def test_a_lost_reply_to_the_completion(server: StorageConfig) -> None:
    config, http = fresh_prefix(server), HttpClient()
    direct = Desk(quick_store(config), lambda put, body: upload(put.url, put.headers, body, http=http))
    direct.put()
    with FaultProxy(config.endpoint) as proxy:
        through = quick_store(replace(config, endpoint=proxy.endpoint), attempts=1)
        complete, lost = through.complete_multipart, []

        def lose(*arguments: Any) -> str:
            proxy.lose_replies()
            try:
                return complete(*arguments)
            except Retryable as fault:
                lost.append(fault)
                raise

        through.complete_multipart = lose  # type: ignore[method-assign]
        Uploads(through, MIN_PART_BYTES).finish(MANIFEST)
        assert len(lost) == 1
    assert direct.stored() == BODY
    http.close()


def test_what_the_object_says_outweighs_the_answer_to_a_completion() -> None:
    desk = in_memory()
    desk.put()
    desk.store.lose_next_reply()  # type: ignore[attr-defined]
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


@pytest.mark.parametrize("fault", [UploadMissing("k"), Retryable("away"), Rejected("bad_parts", "replaced")])
def test_a_completion_that_failed_may_be_tried_again(fault: Exception) -> None:
    desk = in_memory()
    desk.put()
    desk.store.fail_next(fault, operation="complete_multipart")  # type: ignore[attr-defined]
    with pytest.raises(Retryable, match="could not be joined"):
        desk.leader().finish(MANIFEST)
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


def test_two_leaders_at_once_agree_on_one_upload() -> None:
    desk = in_memory()
    others: list[str] = []

    def another_begins(operation: str, key: str) -> None:
        if operation == "create_multipart" and not others:
            others.append("")
            others[0] = desk.store.create_multipart(key)

    desk.store.before = another_begins  # type: ignore[attr-defined]
    assert numbers(desk.ask()) == [1, 2, 3]
    assert len(list(desk.store.list_uploads(""))) == 2
    desk.put(1)
    assert numbers(desk.ask()) == [2, 3]
    desk.put()
    desk.leader().finish(MANIFEST)
    assert list(desk.store.list_uploads("")) == []
    assert desk.stored() == BODY


def test_an_overtaken_upload_that_cannot_be_aborted_harms_nothing() -> None:
    desk = in_memory()
    desk.put()
    desk.store.create_multipart(MANIFEST.key)
    desk.store.fail_next(Retryable("away"), operation="abort_multipart")  # type: ignore[attr-defined]
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY
    assert abort_leftovers(desk.store, "demo", RoundId(8)) == 1


def test_a_store_whose_etags_tell_nothing_resumes_by_size() -> None:
    desk = in_memory(opaque_etags=True)
    desk.put(1, 3)
    assert numbers(desk.ask()) == [2]
    desk.put()
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


def test_a_part_of_other_bytes_than_announced_now_is_put_again() -> None:
    desk = in_memory()
    other = b"\0" * MIN_PART_BYTES
    target = desk.leader().target(MANIFEST, (md5_hex(other), *DIGESTS[1:]), 60)
    assert isinstance(target, MultipartTarget)
    desk.send(PresignedPut(target.parts[0].url, target.parts[0].headers), other)
    desk.put(2)
    assert numbers(desk.ask()) == [1, 3]
    desk.put()
    desk.leader().finish(MANIFEST)
    assert desk.stored() == BODY


def test_a_reply_names_as_many_parts_as_fit() -> None:
    body = bytes(range(251)) * 12
    store = MemoryStore(min_part_bytes=1)
    leader, manifest, digests = Uploads(store, TINY_PART), manifest_of(body), part_digests(body, TINY_PART)
    rounds = 0
    while (target := leader.target(manifest, digests, 60)) and isinstance(target, MultipartTarget) and target.missing:
        assert len(target.parts) == min(MAX_PARTS_A_REPLY, target.missing)
        for part in target.parts:
            start, end = part_range(len(body), TINY_PART, part.number)
            store.redeem_put(part.url, part.headers, body[start:end])
        rounds += 1
    leader.finish(manifest)
    assert rounds == -(-len(digests) // MAX_PARTS_A_REPLY) > 1
    assert store.get(manifest.key, max_bytes=len(body)).body == body
    assert MAX_PARTS_A_REPLY * (4096 + 1000) < MAX_REPLY_BYTES
    assert MAX_PARTS * 35 + 256 * 1024 < MAX_REQUEST_BYTES


@pytest.mark.parametrize("fault", [AccessDenied("403"), Rejected("refused", "418"), Retryable("503")])
def test_an_outage_is_nobodys_fault(fault: Exception) -> None:
    desk = in_memory()
    for use in (desk.ask, lambda: desk.leader().finish(MANIFEST), lambda: arrived(desk.store, MANIFEST),
                lambda: abort_leftovers(desk.store, "demo", RoundId(9))):  # fmt: skip
        desk.store.fail_next(fault)  # type: ignore[attr-defined]
        with pytest.raises(Retryable):
            use()


@settings(deadline=None)
@given(size=st.integers(0, 400), parts=st.lists(st.just("0" * 32), max_size=50))
def test_the_number_of_hashes_must_be_that_of_the_parts(size: int, parts: list[str]) -> None:
    manifest = replace(MANIFEST, delta=ObjectRef(MANIFEST.delta.sha256, size))
    wanted = -(-size // TINY_PART) if size > TINY_PART else 0
    leader = Uploads(MemoryStore(), TINY_PART)
    if len(parts) == wanted:
        leader.check(manifest, parts)
        return
    with pytest.raises(Rejected, match="bad_parts"):
        leader.target(manifest, parts, 60)


def test_a_delta_of_too_many_parts_is_refused() -> None:
    manifest = replace(MANIFEST, delta=ObjectRef(MANIFEST.delta.sha256, TINY_PART * MAX_PARTS + 1))
    with pytest.raises(Rejected, match="at most"):
        Uploads(MemoryStore(), TINY_PART).check(manifest, ["0" * 32] * (MAX_PARTS + 1))
