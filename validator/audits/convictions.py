"""What this validator has found against others: signed, kept among its reports, and there again after a restart.

Invariants: the same fault is written once; what was found is told and acted on at once, also while the place for it is
away, and is put until it lies there; how much is kept of one slot and one accused is bounded, for each kind of fault by
itself: nobody hides a wrong merge behind many smaller faults, or another's. Of a slot that many are accused in, as the
owners of a plan may be, a bounded number is kept, and the first of each of them in any case.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass

from loguru import logger

from common import keys
from common.blocking import in_thread
from common.convictions import (
    MAX_CONVICTION_BYTES,
    MAX_TOLD,
    Conviction,
    Fault,
    LeftOut,
    MergedWrongly,
    ReducedWrongly,
    RejectedFalsely,
    decode_conviction,
    sign_conviction,
)
from common.errors import Rejected, Retryable, SetupError
from common.identity import Signer
from common.spec import SCHEMA
from common.store.port import ObjectMissing
from common.store.retry import RetryPolicy
from common.units import Hotkey, RoundId, Sha256, sha256_hex
from validator.outages import only_facts
from validator.reports_place import ReportStore

MOST_OF_A_SLOT = 8
"""Faults of one kind of one accused in one slot that are kept: more of them prove no more."""
MOST_IN_A_SLOT = 64
"""Faults of one kind in one slot from which on only the first of each accused is kept."""
MOST_OF_ONE = 128
"""Faults of one kind of one leader or miner that are kept."""
MOST_ADOPTED = 2048
"""The newest of an earlier process that are read again."""
MOST_TOLD = 8
Place = tuple[str, int, str]
"""Kind, slot, and what in that slot."""


@dataclass(frozen=True)
class Accused:
    """The slot of the log in which a wrong is, and who led when it was written."""

    leader: Hotkey
    round: RoundId
    seq: int
    slot_sha256: Sha256


class Convictions:
    """Those of one validator in one run. The event loop owns it."""

    def __init__(self, store: ReportStore, run: str, signer: Signer) -> None:
        self._store = store
        self._run = run
        self._signer = signer
        self._kept: dict[Place, Conviction] = {}
        self._unwritten: list[Conviction] = []
        self._found = asyncio.Event()

    def adopt(self) -> None:
        """Take up what an earlier process of this validator has found. Blocking; ``Retryable``."""
        with only_facts():
            listed = [info.key for info in self._store.list(keys.reports_prefix(self._run, self._signer.hotkey))]
        for key in _newest(self._run, listed):
            conviction = self._read(key)
            if conviction is not None and conviction.signer == self._signer.hotkey:
                self._kept[_place(conviction)] = conviction

    def note(self, accused: Accused, told: str, fault: Fault) -> bool:
        """Take down a fault; False for one that is known already, and for one more of a slot that has many."""
        conviction = self._conviction(accused, told, fault)
        place = _place(conviction)
        if place in self._kept or self._has_many(conviction):
            return False
        self._kept[place] = conviction
        self._unwritten.append(conviction)
        self._found.set()
        facts = {"accused": str(conviction.accused), "round": int(accused.round), "slot": accused.seq}
        logger.bind(event=conviction.kind, **facts).error("{}", told)
        return True

    def everything(self) -> Iterable[Conviction]:
        """All of them, in the order in which they were found."""
        return self._kept.values()

    def told(self) -> list[str]:
        """The newest, each in a sentence, for the status."""
        return [conviction.told for conviction in self._kept.values()][-MOST_TOLD:]

    async def run(self) -> None:
        """Write what is found, for ever."""
        policy, failures = RetryPolicy(), 0
        while True:
            await self._found.wait()
            try:
                await self.flush()
                failures = 0
            except (Retryable, SetupError) as fault:
                failures += 1
                logger.warning("a conviction is not written yet: {}", fault)
                asked_s = fault.retry_after_s if isinstance(fault, Retryable) else None
                await asyncio.sleep(policy.wait_s(failures, asked_s, random.random))

    async def flush(self) -> None:
        """Write what is not written. ``Retryable`` when its place is away: the same again writes the rest."""
        while self._unwritten:
            conviction = self._unwritten[0]
            body = sign_conviction(conviction, self._signer).encode()
            key = keys.conviction_key(self._run, conviction.signer, conviction.round, sha256_hex(body))
            await in_thread(lambda key=key, body=body: self._put(key, body))  # type: ignore[misc]
            self._unwritten.remove(conviction)
        self._found.clear()

    def _has_many(self, conviction: Conviction) -> bool:
        kind, seq, _ = _place(conviction)
        of_kind = [known for known in self._kept.values() if known.kind == kind]
        alike = [known for known in of_kind if known.accused == conviction.accused]
        here = sum(known.seq == seq for known in alike)
        crowded = sum(known.seq == seq for known in of_kind) >= MOST_IN_A_SLOT
        return len(alike) >= MOST_OF_ONE or here >= (1 if crowded else MOST_OF_A_SLOT)

    def _put(self, key: str, body: bytes) -> None:
        with only_facts():
            self._store.put(key, body)

    def _read(self, key: str) -> Conviction | None:
        try:
            with only_facts():
                return decode_conviction(self._store.get(key, max_bytes=MAX_CONVICTION_BYTES).body, self._run)
        except ObjectMissing:
            return None
        except Rejected as refusal:
            logger.warning("{} is no conviction: {}", key, refusal)
            return None

    def _conviction(self, accused: Accused, told: str, fault: Fault) -> Conviction:
        return Conviction(
            schema=SCHEMA,
            run=self._run,
            signer=self._signer.hotkey,
            leader=accused.leader,
            round=accused.round,
            seq=accused.seq,
            slot_sha256=accused.slot_sha256,
            told=told[:MAX_TOLD],
            left_out=fault if isinstance(fault, LeftOut) else None,
            merged_wrongly=fault if isinstance(fault, MergedWrongly) else None,
            rejected_falsely=fault if isinstance(fault, RejectedFalsely) else None,
            reduced_wrongly=fault if isinstance(fault, ReducedWrongly) else None,
        )


def _newest(run: str, listed: Iterable[str]) -> list[str]:
    parsed = ((keys.parse_key(run, key), key) for key in listed)
    found = sorted((parts.round_id or 0, key) for parts, key in parsed if parts and parts.kind == "conviction")
    return [key for _, key in found[-MOST_ADOPTED:]]


def _place(conviction: Conviction) -> Place:
    what = ""
    if conviction.left_out is not None:
        receipt = conviction.left_out.opened(conviction.run).receipt
        what = f"{receipt.shard} {receipt.hotkey}"
    elif conviction.rejected_falsely is not None:
        found = conviction.rejected_falsely
        what = f"{found.shard} {found.hotkey} {found.made_for}"
    elif conviction.reduced_wrongly is not None:
        mean = conviction.reduced_wrongly.mean
        what = f"{mean.hotkey} {mean.shard} {mean.partition}"
    return conviction.kind, conviction.seq, what
