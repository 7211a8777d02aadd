"""What the driver, the service and the scorer of one validator share: the parts, and the facts of the moment.

Owned by the event loop: threads get frozen facts and hand back results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loguru import logger

from common.clock import Clock
from common.errors import BrigadeError, Retryable
from common.identity import KeypairSigner
from common.merge.networks import NO_TABLE, AsnTable
from common.model.layout import run_layouts
from common.reports import Report
from common.runlog.entries import EntryData
from common.runlog.state import RunState
from common.spec import RunSpec
from common.store.port import ObjectStore
from common.units import RoundId, Sha256, ShardId
from validator.bodies import RememberingReader
from validator.diary import Diary
from validator.healthdesk import HealthDesk
from validator.journal import Journal
from validator.leadership import Leadership
from validator.members import Members
from validator.membership import Membership
from validator.reads import WatchedReader
from validator.reports_place import ReportStore
from validator.round.facts import Held
from validator.rounds import Round
from validator.scoring.policy import Seat
from validator.submissions import Submissions
from validator.watchdog.facts import Stall


def asked_wait_s(fault: BrigadeError) -> float | None:
    """How long the other end asked us to wait, if it did."""
    return fault.retry_after_s if isinstance(fault, Retryable) else None


@dataclass
class Standing:
    """Where scoring stands: what the newest report says, and what has been paid."""

    report: Report | None = None
    averages: dict[Seat, float] = field(default_factory=dict)
    heldout_first: float | None = None
    heldout_head: float | None = None
    weights_set_block: int | None = None
    weights_round: RoundId | None = None

    @property
    def reported_round(self) -> RoundId | None:
        return self.report.round if self.report else None


@dataclass
class Board:
    """The parts of one validator process."""

    spec: RunSpec
    spec_sha256: Sha256
    signer: KeypairSigner
    clock: Clock
    store: ObjectStore
    reader: RememberingReader
    journal: Journal
    leadership: Leadership
    members: Members
    membership: Membership
    reads: WatchedReader
    reports: ReportStore
    """Where this validator's reports go: the store itself, or a folder of its own."""
    read_only: bool = False
    """Whether there are no keys to write to the storage: then this process follows and never leads."""
    asns: AsnTable = NO_TABLE
    """Which autonomous systems miners' addresses belong to, as far as the operator has said."""
    standing: Standing = field(default_factory=Standing)
    round: Round | None = None
    carried: Submissions | None = None
    """What was delivered to the round before, when this process led it."""
    held: Held = field(default_factory=Held)
    """What the next round takes over of time that did not count; set with each takeover and at each round's end."""
    waiting_for: str = "starting"
    diary: Diary = field(default_factory=Diary)
    health: HealthDesk = field(default_factory=HealthDesk)
    """How fast its miners are, while this process leads."""
    stalls: tuple[Stall, ...] = ()
    """What stands still, by the watchdog's last look."""

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def say(self, text: str) -> None:
        """Tell what is waited for, and log it when it changes in more than its figures."""
        if _kind(text) != _kind(self.waiting_for):
            logger.info("{}", text)
        self.waiting_for = text

    async def append(self, data: EntryData, reason: str) -> RunState:
        """Append an entry to the log in our term; the state after it."""
        return await self.journal.append(data, reason, self.leadership.term)

    def counts(self) -> dict[ShardId, int]:
        """Values of each shard's flat vector."""
        layouts = run_layouts(self.spec.model, self.spec.num_shards)
        return {ShardId(shard): layout.total for shard, layout in enumerate(layouts)}


def _kind(text: str) -> str:
    """A reason without its figures."""
    return "".join(char for char in text if not char.isdigit())
