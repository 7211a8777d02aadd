"""The simulated leader: the real machine of a round, membership, gates, judgement and merge, in virtual time.

What ``validator.driver`` and ``validator.effects`` do with threads and retries is done here by events. Invariants: all
that is decided rests on the log; a leader that is killed at any moment finds everything again in log and bucket;
storage that is away stops decisions and moves deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common import timeouts
from common.errors import Rejected, Retryable
from common.records import StoredSubmission
from common.runlog.entries import EntryData, Resumed, RoundAborted, RoundOpened
from common.runlog.rules import CONTENT_REFUSALS, REFUSALS
from common.runlog.writer import LostSlot
from common.units import RoundId
from validator.checks import Finding
from validator.means import Handed
from validator.members import MAX_MEMBERS, Members
from validator.pausing import pause_for
from validator.restoring import oldest_adopted
from validator.round import core
from validator.round.deadlines import freeze_in_s, unseen
from validator.round.facts import Action, Decision, Held, Phase
from validator.round.opening import next_opening
from validator.round.tokens import proven_rates
from validator.rounds import Round, begin, carried_on, facts_of
from validator.simulator.desk import Desk
from validator.simulator.effects import Effects
from validator.simulator.events import Timer
from validator.simulator.process import Process
from validator.simulator.reduction import LeadersReduction
from validator.simulator.work import Offer
from validator.submissions import Submission, Submissions

if TYPE_CHECKING:
    from validator.simulator.world import World

PERSON_S = 600.0
"""Until somebody has looked at a paused run."""


class Leader(Process):
    """One validator: it leads, or follows and watches the lease."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.current: Round | None = None
        self.freeze_at_s = 0.0
        """When uploads must be there, as it tells the miners."""
        self.leads_since_s = 0.0
        self._timer: Timer | None = None
        self._new_process()

    def _new_process(self) -> None:
        world, limits = self._world, self._world.spec.round
        self._claim, self._records = world.roster.claim(self, self._life)
        self._effects = Effects(world, self._records)
        self.reduction = LeadersReduction(world, self)
        self.members = Members(limits.member_timeout_s, limits.overlap, max(MAX_MEMBERS, len(world.seats)))
        self._nobody = Members(limits.member_timeout_s)
        self._desk = Desk(self._records, self.members, world.seats, world.queue, world.count, trust=world.fast)
        self._took_over = self._busy = self._knows_chain = False
        self._away_since_s: float | None = None
        self._failures = 0
        self._before: Submissions | None = None
        self._held = Held()

    # Life.

    def start(self) -> None:
        """A process begins: it takes the lead when it may, and finds the round in the log."""
        self._life += 1
        self.alive, self.current = True, None
        self._new_process()
        self._look_in(0.0)
        self._keep_lease()

    def die(self) -> None:
        """SIGKILL: everything but log and bucket is gone."""
        self.end()
        self.current = None

    def stop(self) -> None:
        """SIGSTOP."""
        if not self.stopped:
            self.stopped, self._slept_from_s = True, self._world.queue.now_s

    def go_on(self) -> None:
        """SIGCONT: the time it slept is nobody's silence, and moves deadlines."""
        if not self.stopped:
            return
        self.stopped = False
        now_s = self._world.queue.now_s
        if self.alive:
            awake = [m.hotkey for m in self.members if self.members.is_live(m, self._slept_from_s)]
            self.members.expect(awake, now_s)
            self._delay(now_s - self._slept_from_s)
            self._look_in(0.0)

    def join(self, what: frozenset[str]) -> None:
        """The link is back: who could not be heard was not silent."""
        self.cut -= what
        if self.alive:
            self.members.expect([m.hotkey for m in self.members], self._world.queue.now_s)
            self._look_in(0.0)

    @property
    def answers(self) -> bool:
        """Whether a miner's request is answered as the leader's."""
        return self.listening and (len(self._world.validators) == 1 or (self._claim.check() and self._claim.sure()))

    def announce(self, offer: Offer) -> StoredSubmission:
        """See ``Desk``."""
        self.check_store()
        stored = self._desk.announce(self.current, offer)
        self._soon()
        return stored

    def complete(self, offer: Offer) -> Finding:
        """See ``Desk``."""
        self.check_store()
        finding = self._desk.complete(self.current, offer, not offer.plain)
        self._soon()
        return finding

    # Looks.

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.later(delay_s, self._look)

    def _soon(self) -> None:
        """Something happened that a look would see; looks are no closer together than the real leader's."""
        if not self._busy and (self.current is None or self.current.state.phase is not Phase.OPEN or self._all_final()):
            due_s = self._world.queue.now_s + self._world.settings.pause_s
            if self._timer is None or self._timer.call is None or self._timer.at_s > due_s:
                self._look_in(self._world.settings.pause_s)

    def _all_final(self) -> bool:
        assert self.current is not None
        held = self.current.submissions.held()
        return bool(held) and all(one.delivered for one in held.values())

    def _look(self) -> None:
        """Do everything that can be done now."""
        if self._busy:
            return
        try:
            while True:
                wait_s = self._step()
                if wait_s is not None:
                    break
            self._release()
        except LostSlot:
            wait_s = 0.0
        except Retryable:
            if self._away_since_s is None:
                self._away_since_s = self._world.queue.now_s
            wait_s = self._back_off()
        except Rejected as refusal:
            if refusal.code not in REFUSALS or self._claim.check():
                raise
            wait_s = self._back_off()
        if not self._busy and wait_s is not None:
            self._look_in(wait_s)

    def _step(self) -> float | None:
        """At most one effect; seconds until the next look, None for now."""
        self.check_store()
        if self._failures:
            self._claim.renew(force=True)
        self._release()
        if not self._claim.check():
            return self._follow()
        if not self._took_over:
            self._take_over()
            return None
        return self._open() if self.current is None else self._advance()

    def _follow(self) -> float | None:
        """Another leads, or nobody: try to take the lead, once the chain has told seats and heads."""
        self._took_over, self.current = False, None
        self._knows_chain = self._knows_chain or self.reaches_chain()
        try:
            if self._knows_chain and self._claim.try_lead():
                return None
        finally:
            self._world.observe()
        return timeouts.FOLLOWER_LOOK_S

    def _keep_lease(self) -> None:
        """Beside long effects, as ``validator.driver`` does."""
        try:
            self.check_store()
            self._claim.renew()
        except Retryable:
            pass  # the next try may be heard; without renewals the lead is lost
        self.later(timeouts.LEASE_RENEW_S / 2, self._keep_lease)

    def _back_off(self) -> float:
        self._failures += 1
        return min(timeouts.RETRY_MOST_S, timeouts.RETRY_FIRST_S * 2.0 ** min(self._failures, 10))

    def _take_over(self) -> None:
        """A new term has begun: what log and bucket hold of the round."""
        world = self._world
        self._took_over, self._before = True, None
        state, now_s = self._records.state, world.queue.now_s
        self.leads_since_s = now_s
        self._held = unseen(state, now_s - world.turned_s)
        if state.open_round is not None:
            current = begin(state, now_s, self._held)
            self._restore(current)
            current.submissions.closed = state.open_round.plan is not None
            current.follow(state, lambda: world.coldkeys)
            self.current = current
        if len(state.leaders) > 1:
            self.members.expect(world.hotkeys, now_s)
            self.members.note_earlier(world.hotkeys)
            self.members.learn(world.proven)
        world.post.news()

    def _restore(self, current: Round) -> None:
        """Take in what the bucket keeps that may count, by the rules of ``validator.restoring``."""
        world, state, now_s = self._world, self._records.state, self._world.queue.now_s
        base = state.revisions[current.state.base_revision]
        failed = [entry.round + 1 for entry in world.failed if entry.base_revision == base.revision]
        first = max(oldest_adopted(state, current.opened), *failed, 0)
        late = {(m.round, m.delta.sha256) for m in state.deferred}
        rounds = sorted({*range(first, current.state.round + 1), *(round_id for round_id, _ in late)})
        for round_id in rounds:
            for stored in self._records.kept(RoundId(round_id)):
                manifest = stored.manifest
                own = manifest.base_revision == base.revision
                if own or (manifest.round, manifest.delta.sha256) in late:
                    finding = Finding() if own and manifest.final else None
                    seat = world.seats[manifest.signer]
                    current.submissions.add(Submission(stored, seat, now_s, manifest.final, now_s, finding))

    def _open(self) -> float | None:
        world, state = self._world, self._records.state
        if world.done:
            return world.settings.pause_s * 100
        opening = next_opening(state)
        if opening.do == "pause":
            world.append(self._records, *pause_for(state, world.failed[-len(state.failures) :]))
            world.later(PERSON_S, world.resume)
            return PERSON_S
        if opening.do == "wait":
            return PERSON_S / 10
        world.append(self._records, RoundOpened(state.next_round, state.head), opening.reason)
        before, self._before = self._before, None
        self.current = begin(self._records.state, world.queue.now_s, self._held)
        if before is not None:
            self.current.submissions.carry(before)
        else:
            self._restore(self.current)
        self._began("open")
        world.post.news()
        return None

    def resume(self, command: Resumed) -> None:
        """The owner's order lies in the bucket."""
        if self._records.state.paused is not None:
            self._world.append(self._records, command, "the owner has looked")
            self._look_in(0.0)

    def _advance(self) -> float | None:
        world, current = self._world, self.current
        assert current is not None
        now_s, state = world.queue.now_s, self._records.state
        current.follow(state, lambda: world.coldkeys)
        before = current.state.phase
        taking = before in (Phase.OPEN, Phase.CLOSING)
        if taking:
            world.post.hear_all(self, all_news=before is Phase.OPEN)
        # After the freeze the machine asks nothing about members.
        facts = facts_of(current, state, self.members if taking else self._nobody, now_s)
        decision = core.tick(current.state, facts, now_s, current.policy)
        current.state = decision.state
        if taking:
            self.freeze_at_s = now_s + freeze_in_s(current.state, facts.members, now_s, current.policy)
        if current.state.phase is not before:
            self._phase_changed(before)
            if current.state.phase is Phase.REDUCED and len(world.validators) > 1:
                return world.settings.storage_latency_s  # so long another may come between
        if decision.action is Action.WAIT:
            return self._wait_s(decision, core.trained_tokens(facts))
        return self._act(decision)

    def _wait_s(self, decision: Decision, tokens: int) -> float:
        """Until the next look: the phase's own time, the predicted closing, or the real leader's pause."""
        world, current = self._world, self.current
        assert current is not None
        now_s, look_s = world.queue.now_s, world.settings.pause_s
        until_s = now_s + 10 * look_s if decision.until_s is None else decision.until_s
        if current.state.phase is Phase.OPEN:
            rate = world.post.training_rate()
            missing = current.policy.target_tokens - tokens
            until_s = min(until_s, now_s + (missing / rate if rate > 0 else 60.0), now_s + 60.0)
        else:
            until_s = min(until_s, now_s + max(look_s, self._world.spec.round.member_timeout_s / 4))
        return max(look_s, until_s - now_s)

    def _phase_changed(self, before: Phase) -> None:
        assert self.current is not None
        phase = self.current.state.phase
        if before is Phase.OPEN:
            self._began("closing")
            self._world.post.news()
        if phase is not Phase.CLOSING:
            self._began(str(phase.value))

    def _began(self, phase: str) -> None:
        """Only who leads by the log makes phases."""
        if self._claim.term == self._world.records.state.term:
            self._world.phase_began(phase)

    # Effects.

    def _act(self, decision: Decision) -> float | None:
        current, world = self.current, self._world
        assert current is not None
        round_id, base = current.state.round, current.state.base_revision
        if decision.action is Action.JUDGE:
            current.submissions.closed = True
            self._work(world.settings.judge_s, lambda held: self._effects.judge(held, self.members, self._desk))
        elif decision.action is Action.PLAN:
            assert current.judgement is not None
            self._append(current.judgement.plan(round_id, base, 0), decision.reason)
        elif decision.action is Action.REPLAN:
            assert current.redo is not None
            assert current.harm is not None
            self._append(current.redo.plan(round_id, base, current.harm.attempt + 1), decision.reason)
        elif decision.action is Action.REDUCE:
            if self.reduction.awaited(current):
                return world.settings.pause_s
            handed = self.reduction.close(current)
            self._work(world.settings.reduce_s, lambda held: self._reduce(held, handed))
        elif decision.action is Action.COMMIT:
            assert current.merged is not None
            self._append(current.merged.commit, f"round {round_id} makes a revision")
        elif decision.action is Action.ABORT:
            code, evidence = decision.state.code, decision.state.evidence
            world.append(self._records, RoundAborted(round_id, base, code, evidence), decision.reason)
        else:
            assert decision.action is Action.END
            self._end(current)
        return world.settings.pause_s if self._busy else None

    def _reduce(self, current: Round, handed: Handed | None) -> None:
        self._effects.reduce(current, handed)
        self.reduction.bar(current)

    def _append(self, data: EntryData, reason: str) -> None:
        """An entry that the round can't go on without."""
        current = self.current
        assert current is not None
        try:
            self._world.append(self._records, data, reason)
        except Rejected as refusal:
            if refusal.code in CONTENT_REFUSALS:
                current.give_up(refusal.code, refusal.message)
                self._world.violations.append(f"the log's rules refused the leader's own entry: {refusal}")
            else:
                raise

    def _work(self, takes_s: float, effect: Callable[[Round], None]) -> None:
        """An effect in a worker thread: nothing else is looked at until it is done."""
        current = self.current
        assert current is not None
        self._busy = True

        def done() -> None:
            self._busy = False
            try:
                self.check_store()
                effect(current)
            except Retryable:
                self._away_since_s = self._away_since_s or self._world.queue.now_s
                self._look_in(self._back_off())
                return
            self._look()

        self.later(takes_s, done)

    def _end(self, current: Round) -> None:
        world = self._world
        committed = current.state.phase is Phase.COMMITTED
        if committed and current.judgement is not None:
            self.members.prove(proven_rates(current.judgement.watched, self.members.proven()))
            world.proven = self.members.proven()
            self.members.note_committed(current.state.round, current.named(), current.came())
        self._before, self.current = carried_on(current), None
        self._held = core.held_on(current.state)
        self._began("gap")
        world.post.news()

    def _release(self) -> None:
        if self._away_since_s is not None:
            self._delay(self._world.queue.now_s - self._away_since_s)
        self._failures, self._away_since_s = 0, None

    def _delay(self, by_s: float) -> None:
        if self.current is None:
            self._held = core.longer(self._held, by_s)
        else:
            self.current.state = core.delayed(self.current.state, by_s)
