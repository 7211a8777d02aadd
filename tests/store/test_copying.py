"""A large object into another store: one part in memory, continued where it stood, whole or not at all."""

from __future__ import annotations

import pytest

from common.errors import Rejected, Retryable
from common.store.copying import PartCopier
from common.store.memory import MemoryStore
from common.store.multipart import MIN_PART_BYTES, md5_hex
from common.store.port import ObjectInfo, ObjectStore, PresignedPut
from common.units import sha256_hex
from tests.store.bench import Bench, presign_part

KEY = "runs/x/large"
PART = 100
BODY = bytes(range(256)) * 4


class Counted:
    """A source and a target, and what passes between them."""

    def __init__(self, opaque_etags: bool = False) -> None:
        self.old, self.new = MemoryStore(), MemoryStore(min_part_bytes=PART, opaque_etags=opaque_etags)
        self.old.put(KEY, BODY)
        self.sent: list[int] = []

    def send(self, put: PresignedPut, body: bytes) -> str:
        self.sent.append(len(body))
        return self.new.redeem_put(put.url, put.headers, body)

    def copy(self) -> None:
        PartCopier(self.old, self.new, self.send, PART).copy(info(self.old), sha256_hex(BODY))


def info(store: ObjectStore) -> ObjectInfo:
    found = store.head(KEY)
    assert found is not None
    return found


@pytest.mark.parametrize("opaque_etags", [False, True])
def test_cut_off_anywhere_it_goes_on_with_the_parts_that_are_missing(opaque_etags: bool) -> None:
    count = -(-len(BODY) // PART)
    for cut in range(count):
        pair = Counted(opaque_etags=opaque_etags)
        number = 0

        def die(operation: str, key: str, cut: int = cut) -> None:
            nonlocal number
            number += operation == "put_part"
            if operation == "put_part" and number == cut + 1:
                raise Retryable("cut off")

        pair.new.before = die
        with pytest.raises(Retryable, match="cut off"):
            pair.copy()
        assert pair.new.head(KEY) is None
        pair.new.before, pair.sent = None, []
        pair.copy()
        assert len(pair.sent) == count - cut, "no part twice"
        assert max(pair.sent) <= PART
        assert pair.new.get(KEY, max_bytes=len(BODY)).body == BODY
        assert list(pair.new.list_uploads("")) == []


def test_a_reply_that_was_lost_is_no_failure_and_wrong_bytes_never_appear() -> None:
    pair = Counted()
    pair.new.lose_next_reply(key_part=KEY)
    with pytest.raises(Retryable):
        pair.copy()
    pair.copy()
    assert pair.new.get(KEY, max_bytes=len(BODY)).body == BODY

    pair = Counted()
    pair.old.corrupt(KEY, lambda body: body[:-1] + b"?")
    with pytest.raises(Rejected, match="checksum_mismatch"):
        pair.copy()
    assert pair.new.head(KEY) is None
    assert list(pair.new.list_uploads("")) == []


def test_other_parts_of_the_same_upload_are_replaced() -> None:
    pair = Counted()
    upload_id, wrong = pair.new.create_multipart(KEY), b"w" * PART
    pair.send(presign_part(pair.new, KEY, upload_id, 1, wrong), wrong)
    pair.copy()
    assert pair.new.get(KEY, max_bytes=len(BODY)).body == BODY


def test_an_object_that_changes_meanwhile_is_not_mixed() -> None:
    pair = Counted()
    listed = info(pair.old)
    pair.old.put(KEY, BODY[::-1])
    with pytest.raises(Retryable, match="written again"):
        PartCopier(pair.old, pair.new, pair.send, PART).copy(listed, None)
    assert pair.new.head(KEY) is None


def test_into_every_kind_of_store(bench: Bench) -> None:
    """Two parts of the least size that S3 takes, the first of which came with a process that died."""
    old, body = MemoryStore(), BODY * (MIN_PART_BYTES // len(BODY)) + b"the rest"
    old.put(KEY, body)
    upload_id, first = bench.store.create_multipart(KEY), body[:MIN_PART_BYTES]
    bench.send(presign_part(bench.store, KEY, upload_id, 1, first), first)
    sent: list[str] = []

    def send(put: PresignedPut, part: bytes) -> str:
        sent.append(md5_hex(part))
        return bench.send(put, part)

    PartCopier(old, bench.store, send, MIN_PART_BYTES).copy(info(old), sha256_hex(body))
    assert sent == [md5_hex(b"the rest")]
    assert bench.store.get(KEY, max_bytes=len(body)).body == body
    assert list(bench.store.list_uploads("")) == []
