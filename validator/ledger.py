"""What a miner's own counters grew by, through restarts of either side. Pure.

A miner counts per process (session) from zero; the validator adds up growth and writes where it stopped into each
report. Invariants: growth is never negative and never counted twice; a session that ended keeps what it had grown by
until its last heartbeat; a restarted validator goes on from the totals in its newest report.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_TOKENS = 2**50
MOST_S = 1e10


@dataclass(frozen=True)
class Totals:
    """Counters of one process at one moment, or their growth."""

    tokens: int = 0
    training_s: float = 0.0
    online_s: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        """The sum, at most what a report can hold: a member may invent sessions without end."""
        return Totals(
            min(self.tokens + other.tokens, MOST_TOKENS),
            min(self.training_s + other.training_s, MOST_S),
            min(self.online_s + other.online_s, MOST_S),
        )

    def since(self, base: Totals) -> Totals:
        """Growth from ``base``, at least nothing."""
        return Totals(
            max(0, self.tokens - base.tokens),
            max(0.0, self.training_s - base.training_s),
            max(0.0, self.online_s - base.online_s),
        )


@dataclass(frozen=True)
class Account:
    """One miner's books. ``session`` is empty before its first heartbeat."""

    session: str = ""
    last: Totals = Totals()
    """Of the present session."""
    settled: Totals = Totals()
    """The part of ``last`` that reports hold already."""
    ended: Totals = Totals()
    """Growth of sessions that ended since the last report."""

    def growth(self) -> Totals:
        """What no report holds yet."""
        return self.ended + self.last.since(self.settled)


def observe(account: Account, session: str, counters: Totals) -> Account:
    """The books after a heartbeat. A new session starts from zero, as its process did."""
    if session == account.session:
        highest = account.last + counters.since(account.last)
        return Account(session, highest, account.settled, account.ended)
    return Account(session, counters, Totals(), account.growth())


def settle(account: Account, reported: Account) -> Account:
    """The books after the growth of ``reported``, an earlier state of this account, went into a report."""
    if account.session == reported.session:
        return Account(account.session, account.last, reported.last, account.ended.since(reported.ended))
    return Account(account.session, account.last, account.settled, account.ended.since(reported.growth()))


def restored(session: str, last: Totals) -> Account:
    """The books as a report left them."""
    return Account(session, last, last, Totals())
