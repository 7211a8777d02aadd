"""The validators of one simulation: their keys, their view of the lease, and their claims to the lead.

One alone leads by starting. Several have a log and a lease in one store in memory and race for both with the production
code. The lease may be tampered with: deleted again and again, or split, so that each sees one of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from common import keys
from common.identity import KeypairSigner
from common.runlog.entries import Draft, Genesis, RoundAborted, RoundOpened, encode_entry
from common.runlog.writer import LogWriter
from common.spec import spec_hash
from common.store.memory import MemoryStore
from common.store.port import Fetched, ObjectInfo
from common.units import Hotkey
from validator.simulator.bucket import BucketRecords
from validator.simulator.claims import Claim, LeaseClaim, SoleClaim
from validator.simulator.events import Queue
from validator.simulator.logs import ONCE, WatchedLog
from validator.simulator.records import FastRecords, Records

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.world import World


def validator_keys(count: int) -> list[KeypairSigner]:
    """Keys of so many validators."""
    return [KeypairSigner.from_uri("//Validator" if not i else f"//Validator/{i}") for i in range(count)]


class _LeaseView(MemoryStore):
    """The common lease or, while it is split, one of this validator's own."""

    def __init__(self, roster: Roster, queue: Queue) -> None:
        super().__init__(queue)
        self._roster = roster

    def _common(self) -> MemoryStore | None:
        return None if self._roster.split else self._roster.store

    def put(self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        common = self._common()
        if common is None:
            return super().put(key, body, if_none_match=if_none_match, if_match=if_match)
        return common.put(key, body, if_none_match=if_none_match, if_match=if_match)

    def get(self, key: str, *, start: int | None = None, end: int | None = None, max_bytes: int) -> Fetched:
        common = self._common()
        return super().get(key, max_bytes=max_bytes) if common is None else common.get(key, max_bytes=max_bytes)

    def head(self, key: str) -> ObjectInfo | None:
        common = self._common()
        return super().head(key) if common is None else common.head(key)


class Roster:
    """Who may lead, with what."""

    def __init__(self, world: World, owner: KeypairSigner, signers: list[KeypairSigner]) -> None:
        """Of several the log begins here, or goes on in the bucket's."""
        self.signers = signers
        self.split = False
        self.store = MemoryStore(world.queue)
        """Of log and lease."""
        self._world = world
        self._runner: asyncio.Runner | None = None
        self._serial = itertools.count(1)
        if len(signers) > 1:
            self._views = [_LeaseView(self, world.queue) for _ in signers]
            world.records = self._watched(world, owner)

    def _watched(self, world: World, owner: KeypairSigner) -> Records:
        records = world.records
        if isinstance(records, BucketRecords):
            self.store, state = records.store, records.state
        else:
            assert isinstance(records, FastRecords)
            genesis = Genesis(spec_hash(world.spec), (records.state.head_node.shards[0],))
            writer = LogWriter(self.store, world.spec, owner, world.queue, lambda: "f" * 32, ONCE)
            state = writer.begin(genesis, "the run begins")
        self.log = WatchedLog(self.store, world.spec, state)
        return records.beside(self.signers[0], self.log)

    def number_of(self, hotkey: Hotkey | None) -> int:
        """Of the validator with this key; 0 for nobody's."""
        return next((i for i, signer in enumerate(self.signers) if signer.hotkey == hotkey), 0)

    def claim(self, leader: Leader, life: int) -> tuple[Claim, Records]:
        """What a process that begins now leads with."""
        world = self._world
        if len(self.signers) == 1:
            return SoleClaim(world.records.log, f"{life:032x}"), world.records
        signer = self.signers[leader.number]
        claim = LeaseClaim(
            self.store,
            self._views[leader.number],
            world.spec,
            signer,
            leader.clock,
            f"{leader.number:016x}{life:016x}",
            lambda: f"{next(self._serial):032x}",
            world.records.state,
            self._finish,
        )
        return claim, world.records.beside(signer, claim.log)

    def _finish(self, work: Coroutine[Any, Any, object]) -> object:
        """Production awaits threads; virtual time stands still until they are done."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def close(self) -> None:
        """Nothing more is awaited."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def delete_lease(self) -> None:
        """By a stranger with the storage's keys."""
        self.store.delete(keys.lease_key(self._world.spec.run))

    def force_entry(self, number: int) -> None:
        """A validator writes into the next slot, as of the term before, without asking its own rules."""
        state = self._world.records.state
        opened = state.open_round
        data: RoundAborted | RoundOpened = RoundOpened(state.next_round, state.head)
        if opened is not None:
            data = RoundAborted(opened.round, opened.base_revision, "no_quorum", ())
        nonce = f"{next(self._serial):032x}"
        draft = Draft(state.run, state.next_seq, state.head_sha256, max(0, state.term - 1), nonce, 0, "by force", data)
        body = encode_entry(draft, self.signers[number])
        self.store.put(keys.log_key(state.run, state.next_seq), body, if_none_match=True)
