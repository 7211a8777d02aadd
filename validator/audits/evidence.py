"""Which evidence could not be read while a conviction was checked again, and whether retention has deleted it.

What a ``gc`` entry has named may be gone, and then nobody can prove the conviction any more, nor that it was false: its
signer may have been right when the evidence lay there. What is gone and was named by no entry is another matter.
"""

from __future__ import annotations

from collections.abc import Collection

from common import keys
from common.errors import Rejected
from common.runlog import state as log
from common.runlog.retention import named_by
from common.store.port import ObjectMissing, ObjectReader
from common.units import Sha256


class EvidenceReader:
    """An ``ObjectReader`` that notes what it could not give."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.failed: dict[str, bool] = {}
        """Keys, and whether nothing lies there: else it is damaged."""

    def fetch(self, key: str, *, max_bytes: int, sha256: Sha256 | None = None, size_bytes: int | None = None) -> bytes:
        """See ``ObjectReader.fetch``."""
        try:
            return self._reader.fetch(key, max_bytes=max_bytes, sha256=sha256, size_bytes=size_bytes)
        except Rejected as refusal:
            self.failed[key] = isinstance(refusal, ObjectMissing)
            raise


def deleted_by(state: log.RunState, missing: Collection[str]) -> log.Collection | None:
    """The last of the ``gc`` entries that named what is missing; None unless each object was named by one."""
    found = []
    for key in missing:
        parts = keys.parse_key(state.run, key)
        entry = None if parts is None else named_by(state, parts)
        if entry is None:
            return None
        found.append(entry)
    return max(found, key=lambda entry: entry.seq, default=None)
