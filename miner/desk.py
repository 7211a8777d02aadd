"""Which of the stored submissions is to be delivered, which is being delivered, and how those before it went.

One upload at a time: what an earlier plan deferred first, then the newest submission of the open round. Leaders come
and go, so what a leader has confirmed is told again to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from loguru import logger

from common.units import RoundId, Sha256
from miner.delta import Outstanding, Submission
from miner.follow import LogView
from miner.ledger import Ledger
from miner.uplink import Delivery, Uplink

Name = tuple[RoundId, Sha256]


class Desk:
    """The deliveries of one session. The event loop owns it."""

    def __init__(self, uplink: Uplink, ledger: Ledger) -> None:
        self.sending: Submission | None = None
        """What is on its way."""
        self.trouble = ""
        """Why the last submission was refused."""
        self._uplink = uplink
        self._ledger = ledger
        self._closed: set[Name] = set()

    async def deliver(self, sent: Submission) -> None:
        """Until the leader has all of it, or has refused it for good. May be cancelled."""
        self.sending = sent
        try:
            delivery = await self._uplink.deliver(sent)
            self._closed.add(sent.name)
            self._tell(sent, delivery)
            if delivery.accepted:
                await self._ledger.confirm(sent)
        finally:
            self.sending = None

    def reopen(self) -> None:
        """Another process leads: it has to hear of everything again."""
        self._closed.clear()

    def is_closed(self, sent: Submission) -> bool:
        """Whether the present leader has confirmed it, or refused it for good."""
        return sent.name in self._closed

    def next(self, view: LogView) -> Submission | None:
        """What to deliver; None when nothing waits."""
        pending = self._ledger.pending
        if pending is not None and not self.is_closed(pending):
            return pending
        wanted = self.wanted(view)
        if wanted is None or self.is_closed(wanted):
            return None
        return wanted

    def recall(self, view: LogView) -> bool:
        """Whether nobody waits for what is being delivered any more."""
        if self.sending is None:
            return False
        pending, wanted = self._ledger.pending, self.wanted(view)
        names = {sent.name for sent in (pending, wanted) if sent is not None}
        return self.sending.name not in names and self.sending.name not in view.deferred

    def wanted(self, view: LogView) -> Submission | None:
        """The newest submission of the open round, or the one that its plan, or the head's, still waits for."""
        opened, live = view.state.open_round, self._ledger.live
        if opened is not None and opened.plan is None:
            return _newest(one for one in live if one.sent.round == opened.round)
        return _newest(one for one in live if one.sent.name in view.deferred)

    def _tell(self, sent: Submission, delivery: Delivery) -> None:
        self.trouble = "" if delivery.accepted else f"refused: {delivery.code}: {delivery.reason}"
        level = "INFO" if delivery.accepted else "ERROR"
        facts = {"round": sent.round, "final": sent.final, "accepted": delivery.accepted, "code": delivery.code}
        logger.bind(event="delivery", **facts).log(level, "round {}: {}", sent.round, delivery.reason)


def _newest(found: Iterable[Outstanding]) -> Submission | None:
    newest = max(found, key=lambda one: one.order, default=None)
    return None if newest is None else newest.sent
