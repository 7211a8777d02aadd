"""What the simulated leader's worker thread does: judge what was delivered, merge the plan, find who harms.

As ``validator.effects``, on vectors that are in memory already; the loss is the quadratic's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import Rejected
from common.merge.outer import outer_step
from common.reductions import Reduced
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import MergeResult, merge_mean, merge_values
from common.units import Revision
from validator.gating import Entrant, judge, sharing
from validator.harm import Search, examine
from validator.judgement import judgement, without
from validator.means import Handed
from validator.members import Members
from validator.merging import MOST_RISE_NATS, Merged
from validator.round.facts import Harm
from validator.rounds import Round
from validator.simulator.desk import Desk
from validator.simulator.records import SHARD, Records
from validator.simulator.work import make_all
from validator.submissions import Standing, Submission

if TYPE_CHECKING:
    from validator.simulator.world import World


class Effects:
    """Judge and reduce."""

    def __init__(self, world: World, records: Records) -> None:
        self._world = world
        self._records = records

    def judge(self, current: Round, members: Members, desk: Desk) -> None:
        """Look a last time for what nobody announced as complete, and run the gates."""
        world, state = self._world, self._records.state
        base, now_s = current.state.base_revision, world.queue.now_s
        desk.last_look(current, lambda found: world.offer_of(found).plain)
        standings = current.submissions.for_plan()
        make_all(world.offer_of(s.submission) for s in standings if s.submission is not None)
        entrants = [self._entrant(standing, members) for standing in standings]
        count = sharing(entrants, lambda hotkey: members.lives(hotkey, now_s))
        terms = members.terms(world.spec, current.state, now_s, count)
        known = (lambda found: world.offer_of(found).sent) if world.fast else None
        counts = {SHARD: world.count}
        current.judgement = judge(world.spec, base, state.merged, entrants, counts, self._read, terms, known)

    def _entrant(self, standing: Standing, members: Members) -> Entrant:
        _, hotkey, _ = standing.order
        sha256 = standing.submission.manifest.delta.sha256 if standing.submission else None
        if sha256 is None:
            assert standing.deferred is not None
            sha256 = standing.deferred.delta.sha256
        return Entrant(standing, members.seen(hotkey, sha256), None)

    def _read(self, found: Submission) -> bytes:
        body = self._records.read(found.manifest)
        if body is None:
            raise Rejected("object_missing", f"no object at {found.manifest.key}")
        return body

    def reduce(self, current: Round, handed: Handed | None = None) -> None:
        """Merge the newest plan, from what owners have ``handed`` in if they have, and keep the result, or note what
        is wrong with it."""
        world, state = self._world, self._records.state
        plan = state.open_round.plan if state.open_round is not None else None
        assert plan is not None
        base = current.state.base_revision
        weights, outer = world.ground.weights[base], world.outer[base]
        base_loss = world.ground.problem.loss(weights)
        means = world.means.gather(handed) if handed is not None else None
        try:
            if means is not None:
                for wrong in means.wrong:
                    current.lies.setdefault(wrong.hotkey, wrong.told)
                result = merge_mean(world.spec, SHARD, plan, means.vectors[SHARD], weights, outer)
            else:
                result = merge_values(world.spec, SHARD, plan, world.values_of, weights, outer)
            new_loss = world.ground.problem.loss(result.new_weights)
            told = "" if new_loss <= base_loss + MOST_RISE_NATS else f"the loss would go from {base_loss} to {new_loss}"
        except Rejected as refusal:
            if refusal.code == "no_members":
                current.give_up(refusal.code, refusal.message)
                return
            told = str(refusal)
        if told:
            self._trouble(current, plan, told, base_loss)
            return
        self._store(current, plan, result, means.reduced if means is not None else None)

    def _store(self, current: Round, plan: RoundFrozen, result: MergeResult, reduced: Reduced | None) -> None:
        commit = self._records.revision(plan, result, reduced)
        self._world.made[(commit.revision, result.weights_sha256)] = result
        current.merged = Merged(commit, (), "")

    def _trouble(self, current: Round, plan: RoundFrozen, told: str, base_loss: float) -> None:
        world, state = self._world, self._records.state
        now_s = world.queue.now_s
        search = Search(
            world.spec,
            world.coldkeys,
            base_loss,
            lambda m: self._loss_alone(m, plan.base_revision),
            lambda: now_s,
            now_s + 1.0,
        )
        found = examine(plan, told, search)
        before = current.judgement or judgement(world.spec, plan.base_revision, plan.members, world.coldkeys, {})
        left = before.verdict
        if found.suspects:
            current.redo = without(world.spec, plan.base_revision, state.merged, before, found.suspects)
            left = current.redo.verdict
        current.harm = Harm(plan.attempt, found.evidence, tuple(sorted(found.suspects)), left)

    def _loss_alone(self, member: PlanMember, base: Revision) -> float:
        world = self._world
        clip = member.scale / member.weight
        step = (world.values_of(member) * clip).astype("float32")
        weights, outer = world.ground.weights[base], world.outer[base]
        new, _ = outer_step(weights, step, outer.momentum, world.spec.outer.lr, world.spec.outer.momentum)
        return world.ground.problem.loss(new)
