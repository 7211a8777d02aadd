"""One verification of a run under way: what its parts share, and what every one of them asks of an object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from common import keys
from common.errors import Rejected
from common.records import StoredSubmission
from common.runlog import checks
from common.runlog.heard import Heard
from common.runlog.proving import ProvingReader, VerifyError
from common.runlog.reduced import WrongMean
from common.runlog.retention import is_named
from common.runlog.spent import Planned, planned
from common.runlog.state import RunState
from common.runlog.told import Told
from common.store.place import BucketPlace
from common.store.port import ObjectInfo
from common.units import Revision, RoundId, Sha256

Say = Callable[[str], None]


@dataclass
class Work:
    """One verification under way."""

    reader: ProvingReader
    run: str
    listing: list[ObjectInfo]
    say: Say
    place: BucketPlace | None = None
    hashes: list[Sha256] = field(default_factory=list)
    """Of the log's slots."""
    counts: tuple[int, ...] = ()
    """Values of each shard."""
    told: Told = field(default_factory=Told)
    reported: set[RoundId] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    replaced: int = 0
    unreferenced: list[str] = field(default_factory=list)
    suspicious: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    merges: int = 0
    heard: Heard = field(default_factory=Heard)
    wrong_means: list[tuple[Revision, WrongMean]] = field(default_factory=list)

    @cached_property
    def planned(self) -> Planned:
        """What all plans name, once the log is read. Made once: any number of objects may ask."""
        return planned(self.told.plans.values())


@contextmanager
def naming(key: str) -> Iterator[None]:
    """What is found wrong inside is wrong with the object at ``key``."""
    try:
        yield
    except Rejected as error:
        raise VerifyError(key, error.message) from None


def may_be_gone(work: Work, state: RunState, key: str) -> bool:
    """Whether retention has named the object at ``key`` for deletion."""
    parts = keys.parse_key(work.run, key)
    return parts is not None and is_named(state, parts)


def prove_manifest(work: Work, state: RunState, key: str, body: bytes) -> StoredSubmission:
    """A manifest is written after its delta was checked, so the delta is there."""
    parts = keys.parse_key(work.run, key)
    assert parts is not None
    stored = checks.check_manifest(state, key, parts, body)
    if not (may_be_gone(work, state, stored.manifest.key) or work.reader.exists(stored.manifest.key)):
        raise VerifyError(stored.manifest.key, "it is missing, but its manifest is there")
    work.reader.proved.add(key)
    return stored
