"""What one miner process has trained and said: its weights, its account, and its submissions until they are settled.

Weights are made only where somebody needs them. They are held at an *anchor*, a number of inner steps; the weights at
any later mark follow from it, so a drip that nobody reads costs nothing, and whoever asks first changes no result.
Invariants: a mark's weights do not depend on which other marks were ever looked at; vectors that were handed out are
never changed; the account is ``common.merge.account``'s, plan by plan in the log's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.codec.many import decode_many, encode_many
from common.codec.params import F32, F64, delta_params
from common.merge import account as books
from common.merge.account import Account, Merged, Pending, Settled, norm
from common.records import StoredSubmission
from common.runlog.entries import PlanMember
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, sha256_hex
from miner.delta import REJECTED_CAP
from miner.settle import NOT_JUDGED, rank
from validator.simulator.quadratic import Quadratic

Lie = Callable[[F32], F32]
"""What a dishonest miner sends instead of its target."""


@dataclass(frozen=True)
class Ground:
    """What all work stands on."""

    spec: RunSpec
    problem: Quadratic
    weights: dict[Revision, F32]
    """Of every revision that somebody may still hold."""


@dataclass(eq=False)
class Offer:
    """One submission of one process, from its mark to its settlement."""

    session: Session
    round: RoundId
    base: Revision
    first: int
    """Steps at the last settled mark: what came before is somebody's already."""
    mark: int
    """Steps at the mark."""
    tokens: int
    final: bool
    at_s: float
    sha256: Sha256
    size_bytes: int
    """Of the delta of the real model, which is what travels."""
    wire_bytes: int
    """Of the delta of the trained vector, which is what the manifest names."""
    lie: Lie | None = None
    plain: bool = True
    """Whether it will arrive as an honest miner makes it."""
    stored: StoredSubmission | None = None
    """Once it is announced."""
    there: bool = False
    """Its bytes are in the bucket."""
    told: bool = False
    """The leader has confirmed that it is there."""
    moved: F32 = field(default_factory=lambda: _NOTHING, repr=False)
    target: F32 = field(default_factory=lambda: _NOTHING, repr=False)
    sent: F32 = field(default_factory=lambda: _NOTHING, repr=False)
    body: bytes = b""

    @property
    def made(self) -> bool:
        """Whether its vectors are there."""
        return self.target is not _NOTHING


_NOTHING: F32 = np.zeros(0, dtype=np.float32)


@dataclass
class Audit:
    """Sums in float64 of everything that went into an account and out of it."""

    moved: F64
    gone: F64
    """All flows together."""
    largest: float = 0.0
    """The largest value that went through."""
    named: dict[str, float] = field(default_factory=dict)
    """Norms of the flows, added up by name."""

    def note(self, settled: Settled) -> None:
        """One settlement."""
        self.largest = max(self.largest, float(np.abs(settled.account.residual).max(initial=0.0)))
        for name, flow in settled.flows.named():
            if flow.parts:
                values = flow.values()
                self.gone += values
                self.named[name] = self.named.get(name, 0.0) + float(np.sqrt(np.dot(values, values)))


@dataclass
class Fate:
    """What became of the steps of one submission that a plan has settled."""

    offer: Offer
    member: PlanMember | None
    """None if no plan ever names it."""
    late: bool = False
    """It was settled by the plan after the one that deferred it."""


class Session:
    """One process of one miner: or several, if each found the disk of the one before."""

    def __init__(
        self, ground: Ground, index: int, number: int, hotkey: Hotkey, step_tokens: int, audit: bool = False
    ) -> None:
        self.index = index
        self.hotkey = hotkey
        self.held = Revision(-1)
        """Revision whose weights it has; −1 before the first."""
        self.settled = 0
        """Steps at the last settled mark."""
        self.offers: list[Offer] = []
        """On the held revision and not settled, in the order of their marks."""
        self.pending: Offer | None = None
        """Deferred by the plan that made the held revision."""
        self.merged: list[tuple[int, int]] = []
        """Spans of steps that were merged lately."""
        self.anchor = _NOTHING
        self.anchor_steps = 0
        self.step_tokens = step_tokens
        self.account = Account.empty(len(ground.problem.optimum))
        count = len(ground.problem.optimum)
        self.audit = Audit(np.zeros(count), np.zeros(count)) if audit else None
        self._ground = ground
        self._number = number

    def begin(self, revision: Revision) -> None:
        """Start on a revision, with nothing done."""
        self.held, self.anchor = revision, self._ground.weights[revision]

    def offer(
        self, round_id: RoundId, steps: int, final: bool, at_s: float, sizes: tuple[int, int], lie: Lie | None
    ) -> Offer:
        """A submission of everything since the last settled mark; ``sizes`` of the real delta and of the simulated one.

        Until its bytes are made its hash is a name."""
        made = Offer(
            session=self,
            round=round_id,
            base=self.held,
            first=self.settled,
            mark=steps,
            tokens=(steps - self.settled) * self.step_tokens,
            final=final,
            at_s=at_s,
            sha256=sha256_hex(f"{self.hotkey}/{self._number}/{round_id}/{self.held}/{steps}/{final}".encode()),
            size_bytes=sizes[0],
            wire_bytes=sizes[1],
            lie=lie,
        )
        self.offers.append(made)
        return made

    def weights_at(self, steps: int) -> F32:
        """The local weights after so many steps."""
        return self._train(self.anchor, self.anchor_steps, steps)

    def follow(self, revision: Revision, members: Sequence[PlanMember], steps: int) -> list[Fate]:
        """Go over to a revision at ``steps``, by what its plan says of this hotkey; what became of the submissions."""
        named = {member.delta.sha256: member for member in members}
        known = [(rank(named[offer.sha256]), offer.mark, offer) for offer in self.offers if offer.sha256 in named]
        own = max(known, key=lambda each: each[:2])[2] if known else None
        late, self.pending = self.pending, None
        fates: list[Fate] = []
        if own is not None:
            fates.append(Fate(own, named[own.sha256]))
            self._settle_own(own, named[own.sha256])
            start = self._ground.weights[own.base] + own.moved
            now = self._train(start, own.mark, steps)
            self.settled = own.mark
        else:
            start, now = self._ground.weights[self.held], self.weights_at(steps)
        if late is not None:
            fates.append(Fate(late, named.get(late.sha256), late=True))
            self._settle_late(named.get(late.sha256))
        self.anchor, self.anchor_steps = self._ground.weights[revision] + (now - start), steps
        self.held, self.offers = revision, []
        return fates

    def newest_there(self) -> int:
        """Steps at the newest mark whose delta is in the bucket: what outlives machine and disk."""
        return max((offer.mark for offer in self.offers if offer.there), default=self.settled)

    def undecided_tokens(self, steps: int) -> int:
        """Of so many steps those that no plan has decided on, with what is pending."""
        pending = 0 if self.pending is None else self.pending.tokens
        return (steps - self.settled) * self.step_tokens + pending

    def forget_the_missing(self) -> None:
        """Nobody will ever upload what is not there."""
        self.offers = [offer for offer in self.offers if offer.there]

    def lose_since_last_mark(self) -> int:
        """The process was killed and finds its disk: it goes on from its newest submission. Steps that are lost."""
        if self.offers:
            make_all(self.offers)
            last = self.offers[-1]
            self.anchor, self.anchor_steps = self._ground.weights[last.base] + last.moved, last.mark
        else:
            self.anchor, self.anchor_steps = self._ground.weights[self.held], self.settled
        self._number += 1
        return self.anchor_steps

    def _train(self, start: F32, first: int, last: int) -> F32:
        """From the weights after ``first`` steps to those after ``last``; the place names the noise."""
        draw = ((self.index * 1_000_003 + self._number) * 1_000_003 + first) * 104_729 + last
        return self._ground.problem.train(start, last - first, draw)

    def _settle_own(self, own: Offer, member: PlanMember) -> None:
        assert own.made, f"the plan names a submission of {self.hotkey} that was never made"
        beta = self._ground.spec.codec.feedback
        if self.audit is not None:
            self.audit.moved += own.moved
            self.audit.largest = max(self.audit.largest, float(np.abs(own.sent).max(initial=0.0)))
        if member.decision == "accepted":
            settled = books.accepted(self.account, own.target, own.sent, _terms(member), beta)
        elif member.decision == "deferred":
            sent = np.where(np.isfinite(own.sent), own.sent, np.float32(0))
            pending = Pending(own.round, own.base, own.sha256, own.target, sent, _cap_norm(own))
            settled = books.deferred(self.account, pending, beta)
            self.pending = own
        elif member.code in NOT_JUDGED:
            settled = books.not_capped(self.account, own.target, beta)
        else:
            settled = books.rejected(self.account, own.target, _cap_norm(own), beta)
        self._note(settled)

    def _settle_late(self, member: PlanMember | None) -> None:
        if member is None or member.code in NOT_JUDGED:
            self._note(books.pending_returned(self.account))
        elif member.decision == "accepted":
            self._note(books.pending_accepted(self.account, _terms(member)))
        else:
            self._note(books.pending_rejected(self.account))

    def _note(self, settled: Settled) -> None:
        self.account = settled.account
        if self.audit is not None:
            self.audit.note(settled)


def make_all(offers: Iterable[Offer]) -> None:
    """Make the vectors and bytes of submissions, all of one base together."""
    by_base: dict[Revision, list[Offer]] = {}
    for offer in offers:
        if not offer.made:
            by_base.setdefault(offer.base, []).append(offer)
    for base, group in by_base.items():
        _make_group(base, group)


def _make_group(base: Revision, group: Sequence[Offer]) -> None:
    ground = group[0].session._ground
    beta, weights = ground.spec.codec.feedback, ground.weights[base]
    params = delta_params(ground.spec.codec, base)
    for offer in group:
        offer.moved = offer.session.weights_at(offer.mark) - weights
        offer.target = books.wanted(offer.session.account, offer.moved, beta)
    said = np.stack([offer.target if offer.lie is None else offer.lie(offer.target) for offer in group])
    finite = np.asarray(np.isfinite(said).all(axis=1))
    if not finite.all():
        said[~finite] = 0
    bodies = encode_many(said, params)
    decoded = decode_many(bodies, expect=params, count=len(weights)).values
    for place, offer in enumerate(group):
        offer.body = bodies[place] if finite[place] else _poisoned(bodies[place])
        offer.sent = decoded[place]


def _cap_norm(offer: Offer) -> float:
    return REJECTED_CAP * norm(offer.moved)


def _poisoned(body: bytes) -> bytes:
    """A body of the right size whose numbers are not finite, as no honest encoder makes it."""
    return body[:32] + b"\xff" * (len(body) - 32)


def _terms(member: PlanMember) -> Merged:
    return Merged(tokens=member.tokens, weight=member.weight, scale=member.scale)
