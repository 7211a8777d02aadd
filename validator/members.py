"""The miners that this process has heard of: alive or silent, what they do, how fast they are.

Everything is timed by the receiver's monotonic clock; what a miner says about itself is kept as its claim.
Invariants: a heartbeat older than the newest of its session changes nothing; a member that was only ``expected`` (named
by the log or a report after a takeover) counts as live for one timeout and as not yet heard. Times of work are in
``validator.worktime``. Not for threads: the event loop owns it and hands out frozen facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.spec import RunSpec
from common.units import Hotkey, RoundId, Sha256
from common.wire import Heartbeat, Phase
from validator import ledger
from validator.bars import Bars
from validator.care import Care
from validator.ledger import Account, Totals
from validator.round.facts import MemberFacts, RoundState
from validator.round.tokens import UNSUPPORTED, Seen, Terms, most_of, round_usual, usual_rate
from validator.submissions import Held
from validator.uplinks import Uplink
from validator.worktime import UNKNOWN, WorkTime

MAX_MEMBERS = 256  # a subnet has no more seats
PATIENCE_ROUNDS = 2
"""Rounds in a row that a member may let down before no round waits for it; one delivery, and it is awaited again."""
NOTHING_HELD = Held(False, 0, False, 0, 0.0)


@dataclass(slots=True)
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
    work: WorkTime = field(default_factory=WorkTime)
    uplink: Uplink = field(default_factory=Uplink)
    host: str = ""
    """Address that its newest heartbeat came from, as our connection shows it."""
    missed: int = 0
    """Rounds in a row that others made a revision of while it said to train and delivered nothing."""


class Members:
    """All members of the run, by hotkey."""

    def __init__(self, timeout_s: float, overlap: bool = True, most: int = MAX_MEMBERS) -> None:
        """``overlap`` as in the spec; ``most`` members are remembered."""
        self._timeout_s = timeout_s
        self._overlap = overlap
        self._most = most
        self._members: dict[Hotkey, Member] = {}
        self.bars = Bars()
        self.cares: Mapping[Hotkey, Care] = {}
        """What is done about those who are slow, by the health monitor."""
        self._earlier: set[Hotkey] = set()
        self._ordered: list[Member] | None = None
        self.beat_s: float | None = None
        """When the newest heartbeat of anybody came; None before the first."""

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

    def learn(self, rates: Mapping[Hotkey, float]) -> None:
        """Note what was proven to somebody else, of those that have proven nothing here."""
        known = self.proven()
        self.prove({hotkey: rate for hotkey, rate in rates.items() if hotkey not in known})

    def supported(self) -> dict[Hotkey, float]:
        """Times the usual rate that evidence has shown, of those that have some."""
        return {m.hotkey: m.support for m in self._members.values() if m.support is not None}

    def support(self, times: Mapping[Hotkey, float]) -> None:
        """Note what a report says of the drops in loss."""
        for hotkey, value in times.items():
            if hotkey in self._members:
                self._members[hotkey].support = value

    def expect(self, hotkeys: Iterable[Hotkey], now_s: float) -> None:
        """Take these as live for one timeout: a new leader has not heard anybody yet."""
        for hotkey in hotkeys:
            member = self._member(hotkey, now_s)
            member.heard_s = max(member.heard_s, now_s)
        self._forget()

    def note_earlier(self, hotkeys: Iterable[Hotkey]) -> None:
        """Earlier leaders left something of these: each may have worked while nobody led."""
        self._earlier.update(hotkeys)

    def restore(self, accounts: Mapping[Hotkey, Account], now_s: float) -> None:
        """Take over the books that the newest report left, for members that have not spoken yet."""
        for hotkey, account in accounts.items():
            member = self._member(hotkey, now_s - self._timeout_s)
            if member.beat is None:
                member.account = account

    def hear(self, hotkey: Hotkey, beat: Heartbeat, now_s: float) -> None:
        """Take in a heartbeat that arrived now."""
        self.beat_s = now_s
        member = self._member(hotkey, now_s)
        before, before_s = member.beat, member.heard_s
        member.heard_s = now_s
        if before is not None and before.session == beat.session and beat.seq <= before.seq:
            return
        member.work.hear(beat, before, before_s, now_s, self._overlap)
        counters = beat.counters
        totals = Totals(counters.tokens, counters.training_s, counters.online_s)
        member.account = ledger.observe(member.account, beat.session, totals)
        member.beat = beat
        self._forget()

    def seen_at(self, hotkey: Hotkey, host: str) -> None:
        """Its heartbeat came from this address."""
        member = self._members.get(hotkey)
        if member is not None:
            member.host = host

    def note_receipt(self, hotkey: Hotkey, round_id: RoundId, delta: Sha256, tokens: int, now_s: float) -> None:
        """A manifest of so many tokens was receipted for the first time: the time of its work ends here."""
        self._member(hotkey, now_s).work.mark(round_id, delta, tokens, now_s)

    def note_upload(self, hotkey: Hotkey, size_bytes: int, took_s: float) -> None:
        """An object has arrived, so long after its receipt."""
        member = self._members.get(hotkey)
        if member is not None:
            member.uplink.observe(size_bytes, took_s)

    def note_committed(self, round_id: RoundId, named: Mapping[Hotkey, Sha256], delivered: Iterable[Hotkey]) -> None:
        """A round became a revision. ``named``: of each hotkey the delta on the round's base that the plan names,
        whatever it decided: its work for the next plan begins there. ``delivered``: who brought anything whole."""
        came = frozenset(delivered)
        for hotkey, member in self._members.items():
            if hotkey in named:
                member.work.settle(named[hotkey])
            if hotkey in came:
                member.missed = 0
            elif trains(member, round_id):
                member.missed += 1

    def is_live(self, member: Member, now_s: float) -> bool:
        """Whether it was heard of lately and has not said good-bye; what it delivered counts all the same."""
        return now_s - member.heard_s < self._timeout_s and not _gone(member.beat)

    def lives(self, hotkey: Hotkey, now_s: float) -> bool:
        """``is_live`` of whoever has this hotkey."""
        member = self._members.get(hotkey)
        return member is not None and self.is_live(member, now_s)

    def seen(self, hotkey: Hotkey, delta: Sha256) -> Seen:
        """What was seen of the work in a submission: from the last one that a plan named to this one's receipt."""
        member = self._members.get(hotkey)
        seen = UNKNOWN if member is None else member.work.seen(delta)
        return replace(seen, earlier=hotkey in self._earlier)

    def claimed_rates(self, round_id: RoundId, now_s: float) -> dict[Hotkey, float]:
        """Tokens per second that members claim for this round, over the time that we watched them train.

        Live ones that claim nothing yet, or were not watched, are there with 0.
        """
        found = {}
        for hotkey, member in self._members.items():
            rate = _claimed_rate(member, round_id)
            if rate > 0 or self.is_live(member, now_s):
                found[hotkey] = rate
        return found

    def terms(self, spec: RunSpec, state: RoundState, now_s: float, count: int | None = None) -> Terms:
        """What bounds the claims in a round that ``count`` members share; all who live if it isn't given."""
        if count is None:
            count = sum(self.is_live(member, now_s) for member in self._members.values())
        proven = self.proven()
        return Terms(
            target_tokens=spec.target_tokens(state.base_revision),
            members=count,
            longest_s=spec.round.train_deadline_s,
            slack=spec.gates.claim_slack,
            usual_rate=round_usual(proven, self.claimed_rates(state.round, now_s)),
            proven_rate=usual_rate(proven.values()),
            held_s=state.held_s,
            unheard_s=state.unheard_s,
        )

    def facts(
        self, round_id: RoundId, held: Mapping[Hotkey, Held], now_s: float, terms: Terms | None = None
    ) -> tuple[MemberFacts, ...]:
        """All that are live or have brought something whole, in the order of their hotkeys.

        Tokens are as they claim them, cut to what a plan could count under ``terms``.
        """
        if self._ordered is None:
            self._ordered = sorted(self._members.values(), key=lambda member: member.hotkey)
        most = None if terms is None else most_of(terms)
        usual = None if terms is None else terms.usual_rate
        found = []
        for member in self._ordered:
            own = held.get(member.hotkey, NOTHING_HELD)
            live = now_s - member.heard_s < self._timeout_s and not _gone(member.beat)
            if live or own.delivered or own.tokens:
                earlier, care = member.hotkey in self._earlier, self.cares.get(member.hotkey)
                found.append(_facts(member, own, live, round_id, now_s, most, usual, earlier, care))
        return tuple(found)

    def settle(self, hotkey: Hotkey, reported: Account) -> None:
        """A report holds the growth of this member's account as it was."""
        member = self._members.get(hotkey)
        if member is not None:
            member.account = ledger.settle(member.account, reported)

    def _member(self, hotkey: Hotkey, heard_s: float) -> Member:
        member = self._members.get(hotkey)
        if member is None:
            member = self._members[hotkey] = Member(hotkey, heard_s)
            self._ordered = None
        return member

    def _forget(self) -> None:
        """Keep the newest: a subnet has no more seats, so the rest has lost its own."""
        while len(self._members) > self._most:
            oldest = min(self._members.values(), key=lambda member: member.heard_s)
            del self._members[oldest.hotkey]
            self._ordered = None


def trains(member: Member, round_id: RoundId) -> bool:
    """Whether it works for this round, by its newest heartbeat."""
    beat = member.beat
    if beat is not None and beat.round == round_id:
        return beat.round_tokens > 0 or beat.phase is Phase.TRAINING
    return round_tokens(member, round_id) > 0


def round_tokens(member: Member, round_id: RoundId) -> int:
    """Tokens that it says to have trained for this round. Before it has the round's base: those ahead of its last
    submission, which will be this round's."""
    beat = member.beat
    if beat is None:
        return 0
    if beat.round is None or beat.round < round_id:
        return beat.ahead_tokens
    return beat.round_tokens if beat.round == round_id else 0


def _gone(beat: Heartbeat | None) -> bool:
    """It drains, and sends nothing more."""
    return beat is not None and beat.phase is Phase.DRAINING and beat.upload is None


def _claimed_rate(member: Member, round_id: RoundId) -> float:
    beat, seconds = member.beat, member.work.seconds
    if beat is None or not seconds:
        return 0.0
    ahead = beat.ahead_tokens if beat.round == round_id else 0
    return (round_tokens(member, round_id) + ahead) / seconds


def _facts(
    member: Member,
    own: Held,
    live: bool,
    round_id: RoundId,
    now_s: float,
    most: Callable[[float | None, float | None, float, bool], int] | None,
    usual: float | None,
    earlier: bool,
    care: Care | None,
) -> MemberFacts:
    tokens, held = round_tokens(member, round_id), own.tokens
    if most is not None:
        bound = most(member.work.seconds, member.support, member.work.worked_s, earlier)
        tokens, held = min(tokens, bound), min(held, bound)
    rate = _rate(member, round_id, usual)
    return MemberFacts(
        member.hotkey,
        live,
        member.beat is not None,
        trains(member, round_id),
        max(tokens, held),
        own.delivered,
        member.missed < PATIENCE_ROUNDS and (care is None or care.awaited),
        rate if care is None or care.tokens_per_s is None else min(rate, care.tokens_per_s),
        held,
        member.uplink.eta_s(own.coming_bytes, own.coming_since_s, now_s, care.bytes_per_s if care else None),
        own.announced,
    )


def _rate(member: Member, round_id: RoundId, usual: float | None) -> float:
    """Tokens per second: as watched or proven, else as it says, as far as that is usual.

    What is watched lags behind while a round is young, since its time is stretched in the member's favour.
    """
    shown = max(_claimed_rate(member, round_id), member.proven_rate or 0.0)
    rate = shown or (member.beat.tokens_per_s if member.beat else 0.0)
    return rate if usual is None else min(rate, max(UNSUPPORTED, member.support or 0.0) * usual)
