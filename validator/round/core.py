"""The round machine: OPEN → CLOSING → FROZEN → REDUCED → COMMITTED | ABORTED. Pure: one function for each phase.

Invariants, property-tested:

- Phases only go forward, and once a member trains a hard deadline ends every phase: no silence of anybody stops a
  round. Time without a leader or without storage is not counted: ``delayed`` moves the deadline. The last deadline is
  asked before judging, planning and merging; what is merged and stored is committed, however late.
- A round waits for members that are alive and at work, never for a share of the registered ones.
- The log rules: what it says about the end of the round overrides everything that was remembered. ``resume`` makes a
  valid state from the log alone, at any moment of the round.
- A round that was given up stays given up: whatever the facts say later, the only action is ABORT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.units import Revision, RoundId
from validator.round.facts import Action, Decision, MemberFacts, Phase, RoundFacts, RoundPolicy, RoundState

ENDED = (Phase.COMMITTED, Phase.ABORTED)


def opened(round_id: RoundId, base_revision: Revision, now_s: float) -> RoundState:
    """The state of a round that has just begun."""
    return RoundState(round_id, base_revision, since_s=now_s)


def resume(round_id: RoundId, base_revision: Revision, planned: bool, now_s: float, policy: RoundPolicy) -> RoundState:
    """The state of an open round found in the log by a new process: deadlines start again."""
    if planned:
        state = RoundState(round_id, base_revision)
        return _enter(state, Phase.FROZEN, now_s, policy.finish_deadline_s)
    return opened(round_id, base_revision, now_s)


def delayed(state: RoundState, by_s: float) -> RoundState:
    """The same state with its deadline moved by time that must not count."""
    return state if state.deadline_s is None else replace(state, deadline_s=state.deadline_s + max(0.0, by_s))


def tick(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    """One look at the round: the next state, what to do now, and why."""
    if facts.ended is not None and state.phase not in ENDED:
        state = replace(state, phase=facts.ended, since_s=now_s, deadline_s=None)
    return _PHASES[state.phase](state, facts, now_s, policy)


def seconds_left(state: RoundState, now_s: float, policy: RoundPolicy) -> float:
    """Until the phase's deadline; the whole training time before anybody trains."""
    if state.phase in ENDED:
        return 0.0
    return policy.train_deadline_s if state.deadline_s is None else max(0.0, state.deadline_s - now_s)


def trained_tokens(facts: RoundFacts) -> int:
    """Tokens that can still reach the plan: of members that live and are awaited, or have delivered."""
    return sum(member.tokens for member in facts.members if (member.live and member.awaited) or member.delivered)


def _open(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    at_work = [member for member in facts.members if member.live and member.trains]
    if state.deadline_s is None:
        if not at_work:
            return Decision(state, Action.WAIT, "waiting for the first miner to train")
        state = replace(state, deadline_s=now_s + policy.train_deadline_s)
    tokens = trained_tokens(facts)
    why = _why_close(state, facts, tokens, now_s, policy)
    if why:
        return _closing(_enter(state, Phase.CLOSING, now_s, policy.submit_deadline_s), facts, now_s, policy, why)
    told = f"training: {tokens} of {policy.target_tokens} tokens, {_count(at_work)} at work"
    return Decision(state, Action.WAIT, told)


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
    missing = [m for m in facts.members if m.live and m.awaited and (m.trains or not m.heard) and not m.delivered]
    delivered = [m for m in facts.members if m.delivered]
    if not missing:
        why = f"{_count(delivered)} delivered and nobody alive is missing"
    elif state.deadline_s is not None and now_s >= state.deadline_s:
        why = f"the time to submit, {policy.submit_deadline_s:g} s, is over with {len(missing)} missing"
    else:
        waiting = f"waiting for {', '.join(m.hotkey[:8] for m in missing[:4])}{' …' if len(missing) > 4 else ''}"
        return Decision(state, Action.WAIT, f"{closed}; {waiting}" if closed else waiting)
    frozen = _enter(state, Phase.FROZEN, now_s, policy.finish_deadline_s)
    decision = _frozen(frozen, facts, now_s, policy)
    return replace(decision, reason=f"frozen, since {why}: {decision.reason}")


def _frozen(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    ending = _giving_up(state, facts)
    if ending is not None:
        return ending
    if facts.planned and facts.reduced:
        return Decision(replace(state, phase=Phase.REDUCED, since_s=now_s), Action.COMMIT, "the update is stored")
    if state.deadline_s is not None and now_s >= state.deadline_s:
        return _abort(state, "merge_timeout", f"not committed within {policy.finish_deadline_s:g} s of the freeze")
    if facts.planned:
        return Decision(state, Action.REDUCE, "the plan is in the log; merging")
    verdict = facts.verdict
    if verdict is None:
        return Decision(state, Action.JUDGE, "judging what was delivered")
    if verdict.tokens < policy.quorum_tokens:
        return _abort(state, "no_quorum", f"{verdict.tokens} validated tokens, the quorum is {policy.quorum_tokens}")
    if verdict.shards < policy.num_shards:
        return _abort(state, "no_quorum", f"only {verdict.shards} of {policy.num_shards} shards have a submission")
    told = f"{verdict.accepted} accepted, {verdict.rejected} rejected, {verdict.tokens} tokens"
    return Decision(state, Action.PLAN, told)


def _reduced(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    ending = _giving_up(state, facts)
    return ending or Decision(state, Action.COMMIT, "the update is stored; committing")


def _ended(state: RoundState, facts: RoundFacts, now_s: float, policy: RoundPolicy) -> Decision:
    return Decision(state, Action.END, f"round {state.round} is {state.phase}")


def _giving_up(state: RoundState, facts: RoundFacts) -> Decision | None:
    if state.code:
        return _abort(state, state.code, "the round was given up")
    if facts.failure:
        return _abort(state, facts.failure, "the plan can't be merged")
    return None


def _abort(state: RoundState, code: str, reason: str) -> Decision:
    return Decision(replace(state, code=code), Action.ABORT, reason)


def _enter(state: RoundState, phase: Phase, now_s: float, limit_s: float) -> RoundState:
    return replace(state, phase=phase, since_s=now_s, deadline_s=now_s + limit_s)


def _count(members: list[MemberFacts]) -> str:
    return f"{len(members)} miner{'' if len(members) == 1 else 's'}"


_PHASES: dict[Phase, Callable[[RoundState, RoundFacts, float, RoundPolicy], Decision]] = {
    Phase.OPEN: _open,
    Phase.CLOSING: _closing,
    Phase.FROZEN: _frozen,
    Phase.REDUCED: _reduced,
    Phase.COMMITTED: _ended,
    Phase.ABORTED: _ended,
}
