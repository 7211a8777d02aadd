"""What a round's leader holds of everybody's submissions: receipted, arrived, checked. One structure for all of a plan.

A *line* is what one miner sends of one shard on one base: drips and finals, of this round and of aborted ones on the
same base, all cumulative, so that the newest complete one stands for the line and the older ones count for nothing.
The plan names one of each line: the newest complete, else the newest announced (deferred). Beside the lines stand the
late ones: what the plan that made the base deferred. ``for_plan`` gives all of them in the plan's order.

Invariants, property-tested: the same manifest again gives the same receipt; a delta has one drip manifest and one
final one at most; after a checked final nothing replaces it; what was found once is never looked for again; every
line with a receipt is named, and every deferred member of the last plan. Not for threads: the event loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from common.errors import Rejected
from common.identity import SignedRecord
from common.records import Manifest, Receipt, StoredSubmission
from common.runlog.entries import PlanMember
from common.units import Hotkey, Revision, RoundId, Sha256, ShardId
from validator.checks import Finding
from validator.membership import Seat

Line = tuple[ShardId, Hotkey]
Name = tuple[RoundId, ShardId, Hotkey, Sha256]
"""A delta in a run: round, shard, sender, hash."""
Kind = Literal["fresh", "adopted", "late"]
MOST_COMING = 4
"""Unfinished uploads of a line that live on when their round is aborted."""
NOT_THERE = frozenset({"not_uploaded", "wrong_size", "checksum_mismatch"})
"""Findings that say that the upload is not complete: the miner may put the object again."""


@dataclass(frozen=True)
class Submission:
    """One announced delta and what became of it."""

    stored: StoredSubmission
    seat: Seat
    received_s: float
    """When its manifest came, on the receiver's clock."""
    final: bool
    """Whether its sender says that this is all it brings to the round."""
    arrived_s: float | None = None
    """When the object was found in the bucket, of the right size; None before."""
    finding: Finding | None = None
    """Outcome of the check of its bytes; None before they were read."""

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest

    @property
    def receipt(self) -> Receipt:
        return self.stored.receipt

    @property
    def line(self) -> Line:
        return self.manifest.shard, self.manifest.signer

    @property
    def name(self) -> Name:
        manifest = self.manifest
        return manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256

    @property
    def complete(self) -> bool:
        """All its bytes are there, whatever they are worth."""
        return self.arrived_s is not None


@dataclass(frozen=True)
class Standing:
    """One member of the plan to be."""

    kind: Kind
    submission: Submission | None
    """None for a late one that nobody has announced to this process again."""
    deferred: PlanMember | None = None
    """A late one, as the last plan named it."""

    @property
    def order(self) -> tuple[ShardId, Hotkey, RoundId]:
        """What orders a plan."""
        if self.submission is not None:
            return *self.submission.line, self.submission.manifest.round
        assert self.deferred is not None
        return self.deferred.shard, self.deferred.hotkey, self.deferred.round


@dataclass(frozen=True, slots=True)
class Held:
    """What the leader holds of one hotkey for its lines, at one moment."""

    delivered: bool
    """A final of this round is checked, on every line that it announced."""
    tokens: int
    """Claimed by the newest complete submissions."""
    announced: bool
    """It has a receipt on this base: what the plan can't accept, it defers."""
    coming_bytes: int
    """Size of the newest announced submission that has not arrived; 0 when none is on its way."""
    coming_since_s: float
    """When that was announced."""


class Submissions:
    """Everything announced for the plan of one round; ``closed`` after the freeze."""

    def __init__(
        self, round_id: RoundId, base: Revision, deferred: Sequence[PlanMember] = (), most_manifests: int = 64
    ) -> None:
        """``deferred`` as in ``RunState``; ``most_manifests`` of a line in this round, see ``deadlines``."""
        self.round = round_id
        self.base = base
        self.closed = False
        self._most = most_manifests
        self._late: dict[Name, PlanMember] = {_name_of(member): member for member in deferred}
        self._found: dict[Name, Submission] = {}
        self._lines: dict[Line, list[Name]] = {}
        """Of each line, the oldest first."""
        self._by_record: dict[Sha256, Name] = {}
        self._finals: set[tuple[Name, bool]] = set()
        """Of each delta the manifests that were announced: of a drip, of a final."""
        self._tries: dict[Line, int] = {}
        self._done: set[Line] = set()
        """Lines with a checked final of this round."""
        self._lines_of: dict[Hotkey, list[Line]] = {}
        self._held: dict[Hotkey, Held] = {}

    def carry(self, earlier: Submissions) -> None:
        """Take over what still counts of the round before: all lines if it was aborted, and what was deferred."""
        if earlier.base == self.base:
            for line in earlier._lines.values():
                self._carry_line([earlier._found[name] for name in line])
        for name in self._late:
            if name in earlier._found:
                self.add(earlier._found[name])

    def find(self, name: Name) -> Submission | None:
        """The submission of this delta, if it was announced."""
        return self._found.get(name)

    def admit(self, manifest: Manifest, record: SignedRecord) -> Submission | None:
        """The submission that holds this manifest already, or None when a receipt may be given.

        Raises ``Rejected``: ``wrong_round`` (neither this round's nor deferred nor held of an aborted one),
        ``round_closed``, ``already_submitted``, ``already_announced``, ``too_many_submissions``.
        """
        known = self._by_record.get(record.sha256)
        if known is not None:
            return self._found[known]
        if self.closed:
            raise Rejected("round_closed", f"round {self.round} takes no more submissions")
        name = manifest.round, manifest.shard, manifest.signer, manifest.delta.sha256
        if name in self._late:
            self._admit_late(self._late[name], record)
        else:
            self._admit_fresh(name, manifest)
        return None

    def add(self, submission: Submission) -> None:
        """Take in a receipted submission, or one found in the bucket. Of one delta the final takes the drip's place."""
        name, line = submission.name, submission.line
        before = self._found.get(name)
        if before is not None:
            submission = replace(submission, arrived_s=before.arrived_s, finding=before.finding)
        if name[0] == self.round and submission.receipt.manifest_sha256 not in self._by_record:
            self._tries[line] = self._tries.get(line, 0) + 1
        self._found[name] = submission
        self._by_record[submission.receipt.manifest_sha256] = name
        self._finals.add((name, submission.final))
        if name not in self._late:
            self._place(name, line)
            self._note(submission)

    def arrive(self, submission: Submission, now_s: float) -> Submission:
        """Its object is there, of the announced size. Raises as ``settle``."""
        present = self._present(submission)
        if present.complete:
            return present
        self._require_open(last_call=False)
        return self._change(replace(present, arrived_s=now_s))

    def settle(
        self,
        submission: Submission,
        finding: Finding,
        now_s: float,
        *,
        last_call: bool = False,
        kept: StoredSubmission | None = None,
    ) -> Submission:
        """Note what the check of its bytes found; the first finding stands, and nothing changes after the freeze.

        A finding of ``NOT_THERE`` says that it has not arrived. ``kept`` is what the bucket holds for this delta,
        perhaps with another manifest: the plan names that. ``last_call`` is for the leader's own look at the freeze.
        Raises ``Rejected``: ``round_closed``, ``superseded``.
        """
        present = self._present(submission)
        if present.finding is not None:
            return present
        self._require_open(last_call or present.complete)
        present = replace(present, stored=kept or present.stored)
        if finding.code in NOT_THERE:
            return self._change(replace(present, arrived_s=None))
        arrived_s = now_s if present.arrived_s is None else present.arrived_s
        return self._change(replace(present, arrived_s=arrived_s, finding=finding))

    def held(self) -> Mapping[Hotkey, Held]:
        """What is held of everybody who announced something on this base; kept up to date, never to be changed."""
        return self._held

    def delivered(self, hotkey: Hotkey) -> bool:
        """Whether it has brought all that it brings to this round."""
        held = self._held.get(hotkey)
        return held is not None and held.delivered

    def came(self) -> set[Hotkey]:
        """Who has brought anything whole, be it late."""
        late = (self._found[name] for name in self._late if name in self._found)
        on_time = {hotkey for hotkey, held in self._held.items() if held.delivered or held.tokens}
        return on_time | {found.manifest.signer for found in late if found.complete}

    def everything(self) -> Iterator[Submission]:
        """All that is held, in no order."""
        return iter(self._found.values())

    def unfinished(self) -> tuple[Submission, ...]:
        """For a last look at the freeze: the newest announced of each line, and late ones, that have not arrived."""
        newest = (self._found[line[-1]] for line in self._lines.values())
        late = (self._found[name] for name in self._late if name in self._found)
        return tuple(found for found in (*newest, *late) if not found.complete)

    def unchecked(self) -> tuple[Submission, ...]:
        """What the plan would name as complete but nobody has read. Ask again after checking: what turns out not to be
        there uncovers an older drip."""
        standing = (found.submission for found in self.for_plan())
        return tuple(s for s in standing if s is not None and s.complete and s.finding is None)

    def for_plan(self) -> tuple[Standing, ...]:
        """One for each line and each deferred member of the last plan, ordered by shard, hotkey and round."""
        late = [Standing("late", self._found.get(name), member) for name, member in self._late.items()]
        fresh = [found for line in self._lines.values() if (found := self._standing(line)) is not None]
        return tuple(sorted([*late, *fresh], key=lambda found: found.order))

    def _standing(self, line: Sequence[Name]) -> Standing | None:
        found = self._newest_complete(line) or self._found[line[-1]]
        if found.manifest.round == self.round:
            return Standing("fresh", found)
        # Of an aborted round only what came whole: its sender sends anew what did not.
        return Standing("adopted", found) if found.complete else None

    def _newest_complete(self, line: Sequence[Name]) -> Submission | None:
        return next((self._found[name] for name in reversed(line) if self._found[name].complete), None)

    def _carry_line(self, line: Iterable[Submission]) -> None:
        """Of an aborted round the newest complete one, and what may still be on its way after it."""
        kept: list[Submission] = []
        for submission in line:
            kept = [submission] if submission.complete else [*kept, submission]
        for submission in [*kept[:1], *kept[1:][-MOST_COMING:]]:
            self.add(submission)

    def _admit_late(self, member: PlanMember, record: SignedRecord) -> None:
        if record.sha256 != member.manifest_sha256:
            raise Rejected("already_announced", "the last plan deferred another manifest of this delta; send that one")

    def _admit_fresh(self, name: Name, manifest: Manifest) -> None:
        if manifest.round != self.round:
            raise Rejected("wrong_round", f"the open round is {self.round}, and nothing of round {name[0]} is held")
        line = manifest.shard, manifest.signer
        if line in self._done:
            raise Rejected("already_submitted", "the first complete final submission of a round counts")
        if (name, manifest.final) in self._finals or (name, True) in self._finals:
            raise Rejected("already_announced", "this delta was announced with another manifest; send that one again")
        if self._tries.get(line, 0) >= self._most:
            raise Rejected("too_many_submissions", f"at most {self._most} manifests in a round")

    def _place(self, name: Name, line: Line) -> None:
        order = self._lines.get(line)
        if order is None:
            order = self._lines[line] = []
            self._lines_of.setdefault(line[1], []).append(line)
        if name in order:
            order.remove(name)
        order.append(name)
        order.sort(key=self._announced)

    def _announced(self, name: Name) -> tuple[RoundId, int, int]:
        """What makes one newer: its work, as all are cumulative; leaders' wall clocks only between equals."""
        found = self._found[name]
        return name[0], found.manifest.steps, found.receipt.received_ms

    def _present(self, submission: Submission) -> Submission:
        present = self._found.get(submission.name)
        if present is None:
            raise Rejected("superseded", "this submission is not held any more")
        return present

    def _require_open(self, last_call: bool) -> None:
        if self.closed and not last_call:
            raise Rejected("round_closed", f"round {self.round} was frozen before the upload was complete")

    def _change(self, submission: Submission) -> Submission:
        self._found[submission.name] = submission
        if submission.name not in self._late:
            self._note(submission)
        return submission

    def _note(self, changed: Submission) -> None:
        if changed.final and changed.finding is not None and changed.manifest.round == self.round:
            self._done.add(changed.line)
        hotkey = changed.manifest.signer
        lines = self._lines_of[hotkey]
        newest = [self._found[self._lines[line][-1]] for line in lines]
        announced = [found for found in newest if found.manifest.round == self.round]
        whole = [self._newest_complete(self._lines[line]) for line in lines]
        good = (found for found in whole if found is not None and (found.finding is None or found.finding.ok))
        coming = max((f for f in announced if f.final and not f.complete), key=lambda f: f.received_s, default=None)
        self._held[hotkey] = Held(
            delivered=bool(announced) and all(found.line in self._done for found in announced),
            tokens=sum(found.manifest.tokens for found in good),
            announced=bool(announced),
            coming_bytes=coming.manifest.delta.size_bytes if coming else 0,
            coming_since_s=coming.received_s if coming else 0.0,
        )


def _name_of(member: PlanMember) -> Name:
    return member.round, member.shard, member.hotkey, member.delta.sha256
