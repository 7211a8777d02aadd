"""An owner's signed word for the means that it made of its partitions, and what it made them of.

One record covers all partitions of one hand-in. It stays in the bucket beside the means: who lied about a mean, or
was blamed for what somebody else did, can be proved from it long after the round.
"""

from __future__ import annotations

from dataclasses import dataclass

from common import keys
from common.canonical import Json
from common.errors import Rejected
from common.identity import SignedRecord, Signer, decode_record, open_record, sign_record
from common.records import ObjectRef
from common.spec import MAX_PARTITIONS, SCHEMA
from common.typed import from_json, to_json
from common.units import Hotkey, RoundId, Sha256, ShardId, check_sha256

REDUCTION = "reduction"
MAX_REDUCTION_BYTES = 64 * 1024
MAX_WORDS = 4096
"""That a commit may name: about 600 KB of an entry, which may take 1 MiB."""
MAX_COPIES = 64
"""In one hand-in: with an upload's URL for each, the answer fits."""


@dataclass(frozen=True)
class Copy:
    """The mean of one partition."""

    shard: ShardId
    partition: int
    mean: ObjectRef
    inputs_sha256: Sha256
    """What was read: see ``common.merge.partition``."""

    def __post_init__(self) -> None:
        check_sha256(self.inputs_sha256)
        if self.shard < 0 or not 0 <= self.partition < MAX_PARTITIONS:
            raise ValueError(f"there is no partition {self.partition} of shard {self.shard}")


@dataclass(frozen=True)
class Reduction:
    """What one owner hands in."""

    schema: int
    run: str
    signer: Hotkey
    round: RoundId
    plan_sha256: Sha256
    """Hash of the slot that holds the plan."""
    copies: tuple[Copy, ...]

    def __post_init__(self) -> None:
        check_sha256(self.plan_sha256)
        if self.round < 0:
            raise ValueError("there is no such round")
        if not 1 <= len(self.copies) <= MAX_COPIES:
            raise ValueError(f"a hand-in has 1 to {MAX_COPIES} means")
        if len({(copy.shard, copy.partition) for copy in self.copies}) != len(self.copies):
            raise ValueError("a partition is named twice")

    def key_of(self, copy: Copy) -> str:
        """Where a copy's bytes go."""
        return keys.mean_key(self.run, self.round, copy.shard, copy.partition, self.signer, copy.mean.sha256)


@dataclass(frozen=True)
class UsedWord:
    """Names a word by which a commit went."""

    hotkey: Hotkey
    sha256: Sha256
    """Of the object's bytes."""

    def __post_init__(self) -> None:
        check_sha256(self.sha256)


@dataclass(frozen=True)
class TakenParts:
    """The partitions of one shard whose mean was taken from miners."""

    shard: ShardId
    partitions: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True)
class Reduced:
    """What a commit took from miners; the rest of its means its leader computed. ValueError unless all is in order."""

    words: tuple[UsedWord, ...]
    parts: tuple[TakenParts, ...]

    def __post_init__(self) -> None:
        words = [(word.hotkey, word.sha256) for word in self.words]
        shards = [part.shard for part in self.parts]
        ordered = words == sorted(set(words)) and shards == sorted(set(shards))
        if not ordered or any(list(p.partitions) != sorted(set(p.partitions)) for p in self.parts):
            raise ValueError("words, shards and partitions are ordered, each once")
        if len(words) > MAX_WORDS:
            raise ValueError(f"a commit names at most {MAX_WORDS} words")
        if not words or not shards or not all(part.partitions for part in self.parts):
            raise ValueError("it names words and the partitions that were taken by them, or is not there")


def sign_reduction(reduction: Reduction, signer: Signer) -> SignedRecord:
    """Sign a reduction whose ``signer`` is the signer's hotkey."""
    if reduction.signer != signer.hotkey:
        raise ValueError("the reduction names another signer")
    body = to_json(reduction)
    assert isinstance(body, dict)
    return sign_record(REDUCTION, body, signer)


def open_reduction(value: Json, run: str) -> tuple[Reduction, SignedRecord]:
    """Check a record of foreign origin. Raises ``Rejected``: see ``open_record``, or ``bad_reduction``."""
    record = open_record(REDUCTION, value, run, SCHEMA)
    return from_json(Reduction, record.body, "bad_reduction"), record


def decode_reduction(data: bytes, run: str) -> tuple[Reduction, SignedRecord]:
    """Read a stored record. Raises ``Rejected`` as ``open_reduction``."""
    record = decode_record(REDUCTION, data, run, SCHEMA, MAX_REDUCTION_BYTES)
    return from_json(Reduction, record.body, "bad_reduction"), record


def require_signer(reduction: Reduction, record: SignedRecord) -> None:
    """Raise ``Rejected('bad_reduction')`` unless the record is signed by whom it names."""
    if record.signer != reduction.signer:
        raise Rejected("bad_reduction", "it names another signer than signed it")
