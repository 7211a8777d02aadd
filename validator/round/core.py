"""The round machine: OPEN → CLOSING → FROZEN → REDUCED → COMMITTED | ABORTED. Pure: one function for each phase.

Invariants, property-tested:

- Phases only go forward, and once a member trains a hard deadline ends every phase: no silence of anybody stops a
  round. Time without a leader or without storage is not counted: ``delayed`` moves the deadline. The last deadline is
  asked before judging, planning and merging; what is merged and stored is committed, however late.
- Miners train on in the time that deadlines do not count, so ``held_s`` adds it up: what they may claim grows with it.
  The next round takes over what passed since CLOSING, where its work begins; after an abort all, as it does the work.
- A round waits for members that are alive and at work, never for a share of the registered ones; once the quorum has
  come, only as long as waiting brings more than it costs (``grace``).
- A merge that does harm is tried again without those who are suspected of it, a few times; then the round aborts.
- The log rules: what it says about the end of the round overrides everything that was remembered. ``resume`` makes a
  valid state from the log alone, at any moment of the round.
- A round that was given up stays given up: whatever the facts say later, the only action is ABORT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.runlog.rules import MAX_ATTEMPTS
from common.units import Revision, RoundId
from validator.round.facts import (
    Action,
    Decision,
    Held,
    MemberFacts,
    Phase,
    RoundFacts,
    RoundPolicy,
    RoundState,
    Verdict,
)
from validator.round.grace import Grace, grace_left

ENDED = (Phase.COMMITTED, Phase.ABORTED)


def opened(round_id: RoundId, base_revision: Revision, now_s: float, held: Held | None = None) -> RoundState:
    """The state of a round that has just begun; ``held`` is what it takes over of the time before."""
    held = held or Held()
    return RoundState(round_id, base_revision, since_s=now_s, held_s=held.seconds, unheard_s=held.unheard_s)


def resume(
    round_id: RoundId,
    base_revision: Revision,
    planned: bool,
    now_s: float,
    policy: RoundPolicy,
    held: Held | None = None,
) -> RoundState:
    """The state of an open round found in the log by a new process: deadlines start again, after what was ``held``."""
    state = opened(round_id, base_revision, now_s, held)
    if planned:
        after = replace(state, held_after_s=state.held_s, unheard_after_s=state.unheard_s)
        return _enter(after, Phase.FROZEN, now_s, policy.finish_deadline_s)
    return state


def delayed(state: RoundState, by_s: float) -> RoundState:
    """The same state with its deadline, and the time waited, moved by time that must not count."""
    moved_s = max(0.0, by_s)
    deadline_s = None if state.deadline_s is None else state.deadline_s + moved_s
    quorum_s = None if state.quorum_s is None else state.quorum_s + moved_s
    after_s = state.held_after_s + (0.0 if state.phase is Phase.OPEN else moved_s)
    return replace(state, deadline_s=deadline_s, quorum_s=quorum_s, held_s=state.held_s + moved_s, held_after_s=after_s)


def held_on(state: RoundState) -> Held:
    """Of a round that has ended now: the time held that belongs to the work of the next one."""
    if state.phase is not Phase.COMMITTED:
        return Held(state.held_s, state.unheard_s)
    return Held(state.held_after_s, state.unheard_after_s)


def longer(held: Held, by_s: float) -> Held:
    """The same when time that must not count has passed between two rounds."""
    return replace(held, seconds=held.seconds + max(0.0, by_s))


def tick(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    """One look at the round: the next state, what to do now, and why."""
    if facts.ended is not None and state.phase not in ENDED:
        state = replace(state, phase=facts.ended, since_s=now_s, deadline_s=None)
    return _PHASES[state.phase](state, facts, now_s, policy)


def trained_tokens(facts: RoundFacts) -> int:
    """Tokens that can still reach the plan: of members that live and are awaited, and what the others have brought."""
    return sum(member.tokens if _counts(member) else member.dripped_tokens for member in facts.members)


def secured_tokens(facts: RoundFacts) -> int:
    """Tokens of what has come whole, drips and the dead's included."""
    return sum(member.tokens if member.delivered else member.dripped_tokens for member in facts.members)


def missing_members(facts: RoundFacts) -> list[MemberFacts]:
    """Whom a closing round waits for: alive, at work or not heard yet, and not done."""
    return [m for m in facts.members if m.live and m.awaited and (m.trains or not m.heard) and not m.delivered]


def _resting(facts: RoundFacts, policy: RoundPolicy) -> list[MemberFacts]:
    """Who may still bring the quorum although it does not train right now.

    A round can close on what members said just before they moved to its base; while they move they have nothing in it,
    and a round that ended in that moment would abort with nobody's work.
    """
    if secured_tokens(facts) >= policy.quorum_tokens:
        return []
    return [member for member in facts.members if member.live and member.awaited and not member.delivered]


def _counts(member: MemberFacts) -> bool:
    return member.delivered or (member.live and member.awaited)


def _open(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    at_work = [member for member in facts.members if member.live and member.trains]
    if state.deadline_s is None:
        # What the dead left is no reason to end a round that can't be one.
        if not at_work and secured_tokens(facts) < policy.quorum_tokens:
            return Decision(state, Action.WAIT, "waiting for the first miner to train")
        state = replace(state, deadline_s=now_s + policy.train_deadline_s)
    tokens, least_s = trained_tokens(facts), state.since_s + policy.least_open_s
    why = _why_close(state, facts, tokens, now_s, policy)
    if why and now_s < least_s:
        return Decision(state, Action.WAIT, f"{why}; the round before aborted, so not at once", until_s=least_s)
    if why:
        return _closing(_enter(state, Phase.CLOSING, now_s, policy.submit_deadline_s), facts, now_s, policy, why)
    told = f"training: {tokens} of {policy.target_tokens} tokens, {_count(at_work)} at work"
    return Decision(state, Action.WAIT, told, until_s=state.deadline_s)


def _why_close(state: RoundState, facts: RoundFacts, tokens: int, now_s: float, policy: RoundPolicy) -> str:
    if tokens >= policy.target_tokens:
        return f"{tokens} tokens reach the target of {policy.target_tokens}"
    if state.deadline_s is not None and now_s >= state.deadline_s:
        return f"the training time of {policy.train_deadline_s:g} s is over with {tokens} tokens"
    # Of all who live, not of those who train: whoever is first to speak in a round must not end it for the others.
    live = [member for member in facts.members if member.live and member.awaited]
    if live and all(member.delivered for member in live):
        return "all who live have delivered"
    return ""


def _closing(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy, closed: str = "") -> Decision:
    missing, deadline_s = missing_members(facts) or _resting(facts, policy), state.deadline_s
    assert deadline_s is not None
    if not missing:
        delivered = [member for member in facts.members if member.delivered]
        return _freeze(state, facts, now_s, policy, f"{_count(delivered)} delivered and nobody alive is missing")
    if now_s >= deadline_s:
        why = f"the time to submit, {policy.submit_deadline_s:g} s, is over with {len(missing)} missing"
        return _freeze(state, facts, now_s, policy, why)
    waiting, until_s = f"waiting for {_names(missing)}", deadline_s
    if secured_tokens(facts) >= policy.quorum_tokens and facts.shards >= policy.num_shards:
        state = state if state.quorum_s is not None else replace(state, quorum_s=now_s)
        grace = _grace(state, facts, missing, now_s, policy)
        if grace.wait_s <= 0:
            return _freeze(state, facts, now_s, policy, f"the quorum is met and {grace.reason}")
        waiting, until_s = f"{waiting}: {grace.reason}", min(deadline_s, now_s + grace.wait_s)
    return Decision(state, Action.WAIT, f"{closed}; {waiting}" if closed else waiting, until_s=until_s)


def _grace(
    state: RoundState, facts: RoundFacts, missing: list[MemberFacts], now_s: float, policy: RoundPolicy
) -> Grace:
    assert state.deadline_s is not None
    assert state.quorum_s is not None
    waiting = sum(member.rate for member in facts.members if member.live and member.delivered)
    waited_s, left_s = max(0.0, now_s - state.quorum_s), state.deadline_s - now_s
    return grace_left(missing, waiting * policy.waste, waited_s, left_s, policy.late_weight)


def _freeze(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy, why: str) -> Decision:
    decision = _frozen(_enter(state, Phase.FROZEN, now_s, policy.finish_deadline_s), facts, now_s, policy)
    return replace(decision, reason=f"frozen, since {why}: {decision.reason}")


def _frozen(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    ending = _giving_up(state, facts)
    if ending is not None:
        return ending
    if facts.planned and facts.reduced:
        return Decision(replace(state, phase=Phase.REDUCED, since_s=now_s), Action.COMMIT, "the update is stored")
    if state.deadline_s is not None and now_s >= state.deadline_s:
        return _abort(state, "merge_timeout", f"not committed within {policy.finish_deadline_s:g} s of the freeze")
    if facts.attempt is not None:
        return _merging(state, facts, facts.attempt, policy)
    if facts.verdict is None:
        return Decision(state, Action.JUDGE, "judging what was delivered")
    lacking = _lacking(facts.verdict, policy)
    if lacking is not None:
        return _abort(state, *lacking)
    return Decision(state, Action.PLAN, _told(facts.verdict))


def _merging(state: RoundState, facts: RoundFacts, attempt: int, policy: RoundPolicy) -> Decision:
    """The log has a plan: merge it, or what is left of it when its merge does harm."""
    harm = facts.harm
    if harm is None or harm.attempt != attempt:
        return Decision(state, Action.REDUCE, f"plan {attempt + 1} is in the log; merging")
    found = "the merge does harm"
    if not harm.suspects:
        return _abort(state, "loss_guard", f"{found}, and no member can be named for it", harm.evidence)
    if attempt + 1 >= MAX_ATTEMPTS:
        return _abort(state, "loss_guard", f"{found} after {attempt + 1} plans", harm.evidence)
    lacking = _lacking(harm.left, policy)
    if lacking is not None:
        return _abort(state, "loss_guard", f"{found}, and without the suspects {lacking[1]}", harm.evidence)
    told = f"{found}; again without {', '.join(hotkey[:8] for hotkey in harm.suspects)}: {_told(harm.left)}"
    return Decision(state, Action.REPLAN, told)


def _lacking(verdict: Verdict, policy: RoundPolicy) -> tuple[str, str] | None:
    """Code and reason when what was accepted is not enough for a commit."""
    if verdict.tokens < policy.quorum_tokens:
        reason = f"{verdict.tokens} validated tokens, the quorum is {policy.quorum_tokens}"
        refused = verdict.accepted == 0 and verdict.refused_tokens >= policy.quorum_tokens
        return "all_rejected" if refused else "no_quorum", f"{reason}; {_told(verdict)}"
    if verdict.shards < policy.num_shards:
        return "no_quorum", f"only {verdict.shards} of {policy.num_shards} shards have a submission"
    return None


def _reduced(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    ending = _giving_up(state, facts)
    return ending or Decision(state, Action.COMMIT, "the update is stored; committing")


def _ended(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    return Decision(state, Action.END, f"round {state.round} is {state.phase}")


def _giving_up(state: RoundState, facts: RoundFacts) -> Decision | None:
    if state.code:
        return _abort(state, state.code, "the round was given up", state.evidence)
    if facts.failure:
        return _abort(state, facts.failure, "the plan can't be merged", facts.failure_evidence)
    return None


def _abort(state: RoundState, code: str, reason: str, evidence: tuple[str, ...] = ()) -> Decision:
    return Decision(replace(state, code=code, evidence=evidence or (reason,)), Action.ABORT, reason)


def _enter(state: RoundState, phase: Phase, now_s: float, limit_s: float) -> RoundState:
    return replace(state, phase=phase, since_s=now_s, deadline_s=now_s + limit_s)


def _count(members: list[MemberFacts]) -> str:
    return f"{len(members)} miner{'' if len(members) == 1 else 's'}"


def _names(members: list[MemberFacts]) -> str:
    return f"{', '.join(member.hotkey[:8] for member in members[:4])}{' …' if len(members) > 4 else ''}"


def _told(verdict: Verdict) -> str:
    deferred = f", {verdict.deferred} deferred" if verdict.deferred else ""
    return f"{verdict.accepted} accepted, {verdict.rejected} rejected{deferred}, {verdict.tokens} tokens"


_PHASES: dict[Phase, Callable[[RoundState, RoundFacts, float, RoundPolicy], Decision]] = {
    Phase.OPEN: _open,
    Phase.CLOSING: _closing,
    Phase.FROZEN: _frozen,
    Phase.REDUCED: _reduced,
    Phase.COMMITTED: _ended,
    Phase.ABORTED: _ended,
}
