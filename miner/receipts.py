"""The leaders' receipts that this miner holds, until the plans of their rounds honour them. On disk, too.

A receipt is a leader's signed promise that its plan names the sender; with the plan that breaks it, it convicts.
Invariants: one of each round and term is enough, and the first is kept; what is on disk was checked when it came; only
the newest rounds are kept. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from loguru import logger

from common import canonical
from common.blocking import in_thread
from common.convictions import submission_of
from common.errors import Rejected, Retryable
from common.files import write_atomically
from common.identity import SignedRecord
from common.records import MAX_MANIFEST_BYTES, Receipt, StoredSubmission
from common.runlog.entries import Entry
from common.runlog.leftout import judge
from common.runlog.state import RunState
from common.units import RoundId
from miner.delta import Submission

MOST_KEPT = 16
MAX_FILE_BYTES = MOST_KEPT * MAX_MANIFEST_BYTES
FILE = "receipts.json"
Of = tuple[RoundId, int]
"""Round and term."""


class Receipts:
    """Those of one miner in one run."""

    def __init__(self, folder: Path, run: str, state: Callable[[], RunState]) -> None:
        """Reads what an earlier process has kept. Blocks. ``state`` is the log as read so far."""
        self._path = folder / FILE
        self._run = run
        self._state = state
        self._kept: dict[Of, StoredSubmission] = {}
        for one in self._load():
            self._kept[one.receipt.round, one.receipt.term] = one

    async def keep(self, sent: Submission, receipt: Receipt, record: SignedRecord) -> None:
        """Take a receipt whose signer and manifest were checked.

        ``Retryable`` for one of a term that the log, as read so far, does not give to its signer: a leader could say
        any term, and no plan would ever break the promise.
        """
        last = self._state().leaders[-1:]
        if [(led.term, led.hotkey) for led in last] != [(receipt.term, receipt.signer)]:
            raise Retryable(f"the receipt is of term {receipt.term}, and the log, as read so far, of another leader")
        of = receipt.round, receipt.term
        if of in self._kept:
            return
        self._kept[of] = StoredSubmission(sent.manifest, receipt, sent.record, record)
        while len(self._kept) > MOST_KEPT:
            del self._kept[min(self._kept)]
        await self._write()

    def broken(self, plans: Mapping[RoundId, Entry]) -> list[tuple[StoredSubmission, str]]:
        """The receipts that the first plan of their round does not honour, each with what the leader did."""
        found = []
        for (round_id, _), one in self._kept.items():
            judged = judge(one, plans[round_id]) if round_id in plans else None
            if judged is not None and judged.guilty:
                found.append((one, judged.why))
        return found

    async def forget(self, one: StoredSubmission) -> None:
        """It is told to everybody who could be reached."""
        if self._kept.pop((one.receipt.round, one.receipt.term), None) is not None:
            await self._write()

    async def _write(self) -> None:
        envelopes: list[canonical.Json] = [
            {"manifest": one.manifest_record.to_json(), "receipt": one.receipt_record.to_json()}
            for one in self._kept.values()
        ]
        body = canonical.dumps(envelopes)
        await in_thread(lambda: write_atomically(self._path, body))

    def _load(self) -> list[StoredSubmission]:
        try:
            with self._path.open("rb") as file:
                table = canonical.loads(file.read(MAX_FILE_BYTES + 1), MAX_FILE_BYTES)
            rows = table if isinstance(table, list) else []
            return [_opened(row, self._run) for row in rows[:MOST_KEPT]]
        except FileNotFoundError:
            return []
        except Rejected as damage:
            logger.warning("{} can't be used ({}): receipts of an earlier process are lost", self._path, damage)
            return []


def _opened(row: canonical.Json, run: str) -> StoredSubmission:
    if not isinstance(row, dict) or row.keys() != {"manifest", "receipt"}:
        raise Rejected("bad_state", "a row holds manifest and receipt")
    return submission_of(row["manifest"], row["receipt"], run)
