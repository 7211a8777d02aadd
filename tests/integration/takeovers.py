"""A leader that goes away in a given phase of a round, on real processes, and what becomes of that round.

The phase is reached by holding back the one write that would end it (``hold_in``), never by time: a leader whose plan
can't be written is closing, one whose update can't be stored is frozen, one whose commit can't be written has reduced.
The same cells run in the suite (a few of them) and by ``scripts/soak --takeovers`` (all of them).
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from itertools import product

from common import keys
from common.runlog.entries import RevisionCommitted
from common.units import Hotkey, RoundId
from tests.integration.support import SLOWED, accepted, begun, commits
from tests.support.rig import Plan, Rig

FAULTS = ("killed", "stopped", "cut off")
PHASES = ("open", "closing", "frozen", "reduced", "committed")
EVERY_CELL = tuple(product(FAULTS, PHASES))
MOST_LOST = 0.01
"""Of a round's work, by a takeover."""
FIRST, SECOND = "validator", "validator-2"


@dataclass(frozen=True)
class Takeover:
    """One cell. The round is the one that the leader left, or the next one where it had committed its own."""

    fault: str
    phase: str
    leader: str
    round: RoundId
    committed_round: RoundId
    """The first that the next leader committed."""
    committer: str
    without_leader_s: float
    """From the fault to the next leader's first entry."""
    to_commit_s: float
    members: frozenset[str]
    """Who was merged in that round."""
    trained_tokens: int
    """For this round and the one after it, by the largest claims; what was not handed in is in later rounds."""
    merged_tokens: int
    """Of these, what the accepted deltas hold."""
    credited_tokens: int
    """Of these, what counts: a member's share is bounded by the time that it was seen to work."""
    miners_alive: bool

    @property
    def lost(self) -> float:
        """Share of the work of both rounds that is in no accepted delta."""
        return 1 - self.merged_tokens / self.trained_tokens if self.trained_tokens else 0.0

    @property
    def uncredited(self) -> float:
        """Of the work of both rounds what counts for nothing, in rounds."""
        return 2 * (1 - self.credited_tokens / self.trained_tokens) if self.trained_tokens else 0.0

    def held(self, miners: set[str]) -> bool:
        """The standby committed that same round, of the same members, and no miner ended."""
        same = self.committed_round == self.round and self.committer != self.leader
        lost = max(self.lost, self.uncredited) > MOST_LOST
        return same and self.members == miners and self.miners_alive and not lost

    def told(self) -> str:
        """One line for people."""
        return (
            f"{self.fault:8} {self.phase:9} round {self.round}: committed {self.committed_round} by {self.committer}; "
            f"without a leader {self.without_leader_s:.1f} s, to the commit {self.to_commit_s:.1f} s; "
            f"members {len(self.members)}; work lost {self.lost:.2%} of {self.trained_tokens} tokens, "
            f"credited {self.credited_tokens}, {self.uncredited:.2%} of a round lost; miners alive {self.miners_alive}"
        )


@dataclass
class Stage:
    """A subnet of two validators, one of which leads."""

    rig: Rig
    miners: list[str]

    def begin(self) -> None:
        """Everybody runs, and the miners were merged."""
        self.rig.start_validator(name=FIRST)
        for name in self.miners:
            self.rig.start_miner(name, *SLOWED)
        self.rig.start_validator(name=SECOND)
        begun(self.rig, self.miners)

    def play(self, fault: str, phase: str) -> Takeover:
        """One cell: afterwards both validators run again."""
        rig, leader = self.rig, self.leader()
        standby = SECOND if leader == FIRST else FIRST
        rig.watched = standby
        rig.until(lambda: self._follows(standby), f"{standby} following")
        rig.watched = leader
        round_id = self._hold_in(leader, phase)
        rig.watched, term = standby, self._term()
        self._hurt(leader, fault)
        hurt_s = time.monotonic()
        rig.lines[leader].storage.stop_answering()
        rig.until(lambda: self._term() > term, "another leader")
        led_s = time.monotonic()
        entry_round, committer = rig.until(lambda: self._commit_after(term), "its first commit")
        done_s = time.monotonic()
        alive = self.miners_alive()
        self._heal(leader, fault)
        rig.until(lambda: self.plan(RoundId(entry_round + 1)), "the commit of the round after it")
        rig.watched = leader
        rig.until(lambda: self._follows(leader), f"{leader} following")
        trained, merged, credited = self.account((entry_round, RoundId(entry_round + 1)))
        plan = self.plan(entry_round)
        assert plan is not None
        return Takeover(
            fault=fault,
            phase=phase,
            leader=leader,
            round=round_id,
            committed_round=entry_round,
            committer=committer,
            without_leader_s=led_s - hurt_s,
            to_commit_s=done_s - hurt_s,
            members=frozenset(name for name in plan.members if accepted(plan, name)),
            trained_tokens=trained,
            merged_tokens=merged,
            credited_tokens=credited,
            miners_alive=alive and self.miners_alive(),
        )

    # Reaching a phase.

    def _hold_in(self, leader: str, phase: str) -> RoundId:
        """The open round, in which the leader now stands in this phase and can't leave it."""
        rig, run = self.rig, self.rig.spec.run
        storage = rig.lines[leader].storage
        if phase == "open":
            round_id = rig.until(
                lambda: rig.open_round if self._stands(phase) and self._at_work() else None, "miners at work"
            )
            storage.answer(503, None, method="PUT", path=self._path(f"{keys.run_prefix(run)}log/"))
            return round_id
        round_id = rig.until(lambda: None if self._planned() else rig.open_round, "an open round without a plan")
        log, updates = f"{keys.run_prefix(run)}log/", f"{keys.round_prefix(run, round_id)}0/updates/"
        if phase == "closing":
            storage.answer(503, None, method="PUT", path=self._path(log))
            rig.until(lambda: self._stands(phase), "the leader closing")
            return round_id
        storage.answer(503, None, method="PUT", path=self._path(updates))
        rig.until(lambda: self._planned() and self._stands("frozen"), "the leader with a plan, and no update")
        if phase == "frozen":
            return round_id
        assert rig.state is not None
        commit_seq = rig.state.next_seq
        last = commit_seq if phase == "reduced" else commit_seq + 1
        storage.answer(503, None, method="PUT", path=self._path(keys.log_key(run, last)))
        storage.stop_answering(self._path(updates))
        if phase == "reduced":
            rig.until(lambda: self._stands(phase), "the leader with an update, and no commit")
            return round_id
        rig.until(lambda: rig.open_round is None, "the leader with a commit, and no next round")
        return RoundId(round_id + 1)

    def _path(self, key: str) -> str:
        return f"/{self.rig.storage.bucket}/{key}"

    def _planned(self) -> bool:
        opened = self.rig.state.open_round if self.rig.state else None
        return opened is not None and opened.plan is not None

    def _stands(self, phase: str) -> bool:
        view = self.rig.status.round if self.rig.status else None
        if view is None or view.round != self.rig.open_round:
            return False
        # A closing round for which nobody is waited any more is as good as frozen, and only its plan is missing.
        return view.phase == phase or (phase == "closing" and view.phase == "frozen" and not self._planned())

    def _at_work(self) -> bool:
        seen = [self.rig.miner(name) for name in self.miners]
        return all(one is not None and one.round_tokens > 0 for one in seen)

    # The fault.

    def _hurt(self, leader: str, fault: str) -> None:
        part = self.rig.parts[leader]
        if fault == "killed":
            part.kill()
        elif fault == "stopped":
            part.signal(signal.SIGSTOP)
        else:
            self._cut(leader, True)

    def _heal(self, leader: str, fault: str) -> None:
        if fault == "killed":
            self.rig.start_validator(name=leader)
        elif fault == "stopped":
            self.rig.parts[leader].signal(signal.SIGCONT)
        else:
            self._cut(leader, False)

    def _cut(self, leader: str, on: bool) -> None:
        """Between the leader and everybody: storage, chain and miners."""
        self.rig.lines[leader].cut(on)
        for name in self.miners:
            door = self.rig.lines[name].validators[leader]
            door.refuse(on)
            if on:
                door.cut_all()

    # What log and status show.

    def account(self, rounds: tuple[RoundId, ...]) -> tuple[int, int, int]:
        """Trained, merged and credited tokens of these rounds."""
        trained = merged = credited = 0
        for name, round_id in product(self.miners, rounds):
            found = [one for plan in self.rig.committed() for one in plan.of(name) if one.round == round_id]
            accepted_ones = [one for one in found if one.decision == "accepted"]
            claimed = max((one.tokens_claimed for one in found), default=0)
            trained += claimed
            merged += max((one.tokens_claimed for one in accepted_ones), default=0)
            credited += max((one.tokens for one in accepted_ones), default=0)
        return trained, merged, credited

    def leader(self) -> str:
        """Who leads, after one more commit."""
        commits(self.rig)
        assert self.rig.state is not None
        assert self.rig.state.leader is not None
        return self._names()[self.rig.state.leader]

    def _names(self) -> dict[Hotkey, str]:
        return {wallet.hotkey_ss58: wallet.name for wallet in self.rig.wallets.validators}

    def _term(self) -> int:
        return self.rig.state.term if self.rig.state else 0

    def _follows(self, name: str) -> bool:
        status = self.rig.status
        return (
            status is not None
            and status.hotkey == next(hotkey for hotkey, one in self._names().items() if one == name)
            and not status.leading
            and status.term == self._term()
            and status.waiting_for.startswith("following")
        )

    def _commit_after(self, term: int) -> tuple[RoundId, str] | None:
        for entry in self.rig.entries:
            if isinstance(entry.data, RevisionCommitted) and entry.term > term:
                return entry.data.round, self._names()[entry.signer]
        return None

    def plan(self, round_id: RoundId) -> Plan | None:
        return next((plan for plan in self.rig.committed() if plan.frozen.round == round_id), None)

    def miners_alive(self) -> bool:
        return all(self.rig.parts[name].ended() is None for name in self.miners)
