"""The weights and outer state that merges and trials start from: the newest revisions, kept in memory.

Invariant: what is handed out has the hashes that the log committed (``rebuild`` proves them, and a merge's own result
was hashed into the entry). Callers leave the vectors alone. Threads may share it: each revision is rebuilt once, and
only ``get`` blocks, for no lock that ``keep`` takes is held over a rebuild.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from loguru import logger

from common.runlog.catchup import At
from common.runlog.remerge import ShardMemory, rebuild
from common.runlog.state import RunState
from common.store.port import ObjectReader
from common.units import Revision, ShardId

KEPT = 3
"""The head for the next merge, its parent for the trials of the last round, and one for a scorer that lags."""

Memories = tuple[ShardMemory, ...]


class Heads:
    """Revisions by number, the least recently used forgotten."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[Revision, Memories] = OrderedDict()
        self._lock = threading.Lock()
        self._rebuilding: dict[Revision, threading.Lock] = {}

    def get(self, state: RunState, revision: Revision) -> Memories:
        """All shards of a revision, from memory or rebuilt from the bucket.

        Raises ``Rejected('revision_unavailable')`` and as ``rebuild``; ``Retryable`` when the store stays away.
        """
        with self._turn(revision):
            found = self._find(revision)
            if found is None:
                found = self._rebuild(state, revision)
                self.keep(revision, found)
        with self._lock:
            self._rebuilding.pop(revision, None)
        return found

    def keep(self, revision: Revision, memories: Memories) -> None:
        """Keep the result of a merge that was committed."""
        with self._lock:
            self._remember(revision, memories)

    def _turn(self, revision: Revision) -> threading.Lock:
        with self._lock:
            return self._rebuilding.setdefault(revision, threading.Lock())

    def _find(self, revision: Revision) -> Memories | None:
        with self._lock:
            if revision in self._kept:
                self._kept.move_to_end(revision)
            return self._kept.get(revision)

    def _rebuild(self, state: RunState, revision: Revision) -> Memories:
        memories, start = [], self._ancestor(state, revision)
        for shard in range(state.spec.num_shards):
            held = None if start is None else At(start.revision, start.value[shard])
            say = logger.bind(event="catch_up").info
            memory, notes = rebuild(self._reader, state, revision, ShardId(shard), held, say)
            for note in notes:
                logger.warning("{}", note)
            memories.append(memory)
        return tuple(memories)

    def _ancestor(self, state: RunState, revision: Revision) -> At[Memories] | None:
        """The newest revision in memory from which ``revision`` descends."""
        with self._lock:
            for node in reversed(state.lineage(revision)):
                if node.revision in self._kept:
                    return At(node.revision, self._kept[node.revision])
        return None

    def _remember(self, revision: Revision, memories: Memories) -> None:
        self._kept[revision] = memories
        self._kept.move_to_end(revision)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
