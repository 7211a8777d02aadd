"""The miners that this process has heard of: alive or silent, what they do, how fast they are.

Everything is timed by the receiver's monotonic clock; what a miner says about itself is kept as its claim.
Invariants: a heartbeat older than the newest of its session changes nothing; a member that was only ``expected`` (named
by the log or a report after a takeover) counts as live for one timeout and as not yet heard.
Not for threads: the event loop owns it and hands out frozen facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from common.units import Hotkey, RoundId
from common.wire import Heartbeat, Phase
from validator import ledger
from validator.ledger import Account, Totals
from validator.round.facts import MemberFacts
from validator.round.tokens import Seen

MAX_MEMBERS = 256  # a subnet has no more seats
PATIENCE_ROUNDS = 2
"""Rounds in a row that a member may let down before no round waits for it; one delivery, and it is awaited again."""


@dataclass
class Member:
    """What is known of one miner."""

    hotkey: Hotkey
    heard_s: float
    beat: Heartbeat | None = None
    account: Account = field(default_factory=Account)
    proven_rate: float | None = None
    """Tokens per second, as merged work has shown it; None before."""
    support: float | None = None
    """Times the usual rate that the drops of its deltas have shown; None before."""
    round: RoundId | None = None
    """The round that it worked for last."""
    round_since_s: float = 0.0
    """Earliest moment at which it can have begun that round."""
    round_whole: bool = False
    """Whether this process was there when it began."""
    round_rested_s: float | None = None
    """When it told first that it no longer trains; None while it does."""
    missed: int = 0
    """Rounds in a row that others made a revision of while it said to train and delivered nothing."""


class Members:
    """All members of the run, by hotkey."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._members: dict[Hotkey, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, hotkey: Hotkey) -> Member | None:
        return self._members.get(hotkey)

    def proven(self) -> dict[Hotkey, float]:
        """Every proven rate."""
        return {m.hotkey: m.proven_rate for m in self._members.values() if m.proven_rate is not None}

    def prove(self, rates: Mapping[Hotkey, float]) -> None:
        """Note what a committed round has shown, or a report says."""
        for hotkey, rate in rates.items():
            if hotkey in self._members:
                self._members[hotkey].proven_rate = rate

    def supported(self) -> dict[Hotkey, float]:
        """Times the usual rate that evidence has shown, of those that have some."""
        return {m.hotkey: m.support for m in self._members.values() if m.support is not None}

    def support(self, times: Mapping[Hotkey, float]) -> None:
        """Note what a report says of the drops in loss."""
        for hotkey, value in times.items():
            if hotkey in self._members:
                self._members[hotkey].support = value

    def claimed_rates(self, round_id: RoundId, now_s: float) -> dict[Hotkey, float]:
        """Tokens per second that members claim for this round, over the time that we watched them train.

        Live ones that claim nothing yet, or were not watched, are there with 0.
        """
        found = {}
        for hotkey, member in self._members.items():
            tokens, seen = round_tokens(member, round_id), self.seen(hotkey, round_id, None, min(now_s, member.heard_s))
            if tokens > 0 and seen.watched and seen.seconds:
                found[hotkey] = tokens / seen.seconds
            elif self.is_live(member, now_s):
                found[hotkey] = 0.0
        return found

    def expect(self, hotkeys: Iterable[Hotkey], now_s: float) -> None:
        """Take these as live for one timeout: a new leader has not heard anybody yet."""
        for hotkey in hotkeys:
            member = self._members.setdefault(hotkey, Member(hotkey, now_s))
            member.heard_s = max(member.heard_s, now_s)
        self._forget(now_s)

    def restore(self, accounts: Mapping[Hotkey, Account], now_s: float) -> None:
        """Take over the books that the newest report left, for members that have not spoken yet."""
        for hotkey, account in accounts.items():
            member = self._members.setdefault(hotkey, Member(hotkey, now_s - self._timeout_s))
            if member.beat is None:
                member.account = account

    def hear(self, hotkey: Hotkey, beat: Heartbeat, round_opened_s: float, now_s: float) -> None:
        """Take in a heartbeat that arrived now; ``round_opened_s`` is when the present round began."""
        member = self._members.setdefault(hotkey, Member(hotkey, now_s))
        before, before_s = member.beat, member.heard_s
        member.heard_s = now_s
        if before is not None and before.session == beat.session and beat.seq <= before.seq:
            return
        _time_round(member, beat, before, max(round_opened_s, before_s) if before else round_opened_s)
        _time_rest(member, beat, now_s)
        counters = beat.counters
        totals = Totals(counters.tokens, counters.training_s, counters.online_s)
        member.account = ledger.observe(member.account, beat.session, totals)
        member.beat = beat
        self._forget(now_s)

    def is_live(self, member: Member, now_s: float) -> bool:
        """Whether it was heard of lately and has not said good-bye; what it delivered counts all the same."""
        gone = member.beat is not None and member.beat.phase is Phase.DRAINING
        return not gone and now_s - member.heard_s < self._timeout_s

    def facts(self, round_id: RoundId, delivered: Mapping[Hotkey, bool], now_s: float) -> tuple[MemberFacts, ...]:
        """All that are live or have delivered, in the order of their hotkeys; tokens as they claim them."""
        found = []
        for hotkey, member in sorted(self._members.items()):
            live, done = self.is_live(member, now_s), delivered.get(hotkey, False)
            if live or done:
                tokens = round_tokens(member, round_id)
                heard = member.beat is not None
                awaited = member.missed < PATIENCE_ROUNDS
                found.append(MemberFacts(hotkey, live, heard, trains(member, round_id), tokens, done, awaited))
        return tuple(found)

    def note_committed(self, round_id: RoundId, delivered: Mapping[Hotkey, bool]) -> None:
        """Remember who delivered in a round that became a revision, and who only said to train."""
        for hotkey, member in self._members.items():
            if delivered.get(hotkey, False):
                member.missed = 0
            elif trains(member, round_id):
                member.missed += 1

    def seen(self, hotkey: Hotkey, round_id: RoundId, opened_s: float | None, until_s: float) -> Seen:
        """What was seen of a member's work for a round until now, or until its submission came.

        The time of encoding and sending is no time of work: it ends with the first heartbeat that tells of no training.
        ``opened_s`` is when this process opened the round; None if it found it open. Whoever did not tell that it
        worked can have done so since the opening.
        """
        member = self._members.get(hotkey)
        if member is not None and member.round == round_id and member.round_whole:
            rested_s = until_s if member.round_rested_s is None else min(until_s, member.round_rested_s)
            return Seen(max(0.0, rested_s - member.round_since_s), True)
        return Seen(None if opened_s is None else max(0.0, until_s - opened_s), False)

    def settle(self, hotkey: Hotkey, reported: Account) -> None:
        """A report holds the growth of this member's account as it was."""
        member = self._members.get(hotkey)
        if member is not None:
            member.account = ledger.settle(member.account, reported)

    def _forget(self, now_s: float) -> None:
        """Keep the newest: a subnet has no more seats, so the rest has lost its own."""
        while len(self._members) > MAX_MEMBERS:
            oldest = min(self._members.values(), key=lambda member: member.heard_s)
            del self._members[oldest.hotkey]


def trains(member: Member, round_id: RoundId) -> bool:
    """Whether it works for this round, by its newest heartbeat."""
    beat = member.beat
    return beat is not None and beat.round == round_id and (beat.round_tokens > 0 or beat.phase is Phase.TRAINING)


def round_tokens(member: Member, round_id: RoundId) -> int:
    """Tokens that it says to have trained for this round."""
    return member.beat.round_tokens if member.beat is not None and member.beat.round == round_id else 0


def _time_round(member: Member, beat: Heartbeat, before: Heartbeat | None, since_s: float) -> None:
    if beat.round is None or not trains(Member(member.hotkey, 0.0, beat), RoundId(beat.round)):
        return
    if member.round == beat.round:
        return
    member.round = RoundId(beat.round)
    member.round_since_s = since_s
    member.round_rested_s = None
    member.round_whole = before is not None or beat.round_steps == 0


def _time_rest(member: Member, beat: Heartbeat, now_s: float) -> None:
    """Note when it stops to train for its round; training again takes that back."""
    if beat.phase is Phase.TRAINING:
        member.round_rested_s = None
    elif member.round_rested_s is None:
        member.round_rested_s = now_s
