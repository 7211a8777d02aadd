"""Facts and the time in, stalls out: pure. One function for each kind, the causes before what follows from them.

A stall ``holds`` where another miner could not help: then nobody new is sent to fetch data for it. A lack of miners, a
slow one or an aborted round never holds: newcomers are what helps. What merely follows from a cause that was found
(the deadline that passes while the storage is away) is not told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.units import format_bytes
from validator.watchdog.facts import Facts, Fault, Limits, Miner, Stall, Transfer

MOST_NAMED = 4
MOST_TRANSFERS = 8
ABORTS_TOLD = 2
"""Aborted rounds in a row that are worth a word."""
MAX_SAID = 200
ENDING = ("reduced", "committed", "aborted")
"""Phases without a deadline: what is stored is committed, however late."""


def find(facts: Facts, limits: Limits) -> tuple[Stall, ...]:
    """All that stands still, the most important first."""
    causes = [found for look in _CAUSES if (found := look(facts, limits)) is not None]
    if not causes and facts.fault is None and not facts.resting:
        causes = [found for look in _EFFECTS if (found := look(facts, limits)) is not None]
    return *causes, *_transfers(facts, limits), *_beside(facts, limits)


# Causes: the run can't go on whoever joins.


def _paused(facts: Facts, limits: Limits) -> Stall | None:
    if not facts.paused:
        return None
    return Stall("paused", "run", facts.now_s - facts.paused_s, f"the run is {facts.paused}", holds=True)


def _fault(facts: Facts, limits: Limits) -> Stall | None:
    fault = facts.fault
    if fault is None or facts.now_s - fault.since_s < limits.trouble_s:
        return None
    told = {"storage": _storage_away, "object": _object_missing, "chain": _chain_missing, "refused": _entry_refused}
    code = {"storage": "storage_away", "object": "object_unreadable", "chain": "chain_away", "refused": "entry_refused"}
    for_s = facts.now_s - fault.since_s
    return Stall(code[fault.kind], "run", for_s, told[fault.kind](facts, fault), holds=True)


def _storage_away(facts: Facts, fault: Fault) -> str:
    return (
        f"{_where(facts)} stands still: the storage does not answer ({_said(fault)}). Deadlines stand still with it "
        "and it goes on by itself; check the storage, this machine's line to it and the keys"
    )


def _object_missing(facts: Facts, fault: Fault) -> str:
    return (
        f"{_where(facts)} stands still: the storage answers, but does not give what is needed ({_said(fault)}). It is "
        "tried again until the round's deadline; restore the object, or let the deadline end the round"
    )


def _chain_missing(facts: Facts, fault: Fault) -> str:
    return (
        f"{_where(facts)} stands still: without the chain nobody's seat is known ({_said(fault)}). It goes on once the "
        "chain answers; check --chain and this machine's line to it"
    )


def _entry_refused(facts: Facts, fault: Fault) -> str:
    return (
        f"{_where(facts)} stands still: the log's rules refuse the entry that comes next ({_said(fault)}). The round "
        "ends by its deadline; `brigade run log` and this validator's log tell more"
    )


def _hangs(facts: Facts, limits: Limits) -> Stall | None:
    """The driver has not come back from what it does: the process lives, and its round does not."""
    step = facts.step
    limit_s = 0.0 if step is None else limits.merge_s if step.merging else limits.step_s
    if step is None or facts.now_s - step.since_s < limit_s:
        return None
    for_s = facts.now_s - step.since_s
    text = (
        f"{_where(facts)} stands still: this validator has been at one thing for {for_s:.0f} s ({step.doing}) and "
        f"waits for its end, where {limit_s:.0f} s are the most it should take. If it does not come, restart the "
        "validator: it goes on from the log"
    )
    return Stall("driver_hangs", "run", for_s, text, holds=True)


def _leaderless(facts: Facts, limits: Limits) -> Stall | None:
    """Of a process that follows: nobody leads, or whoever does writes nothing."""
    seen = facts.following
    if seen is None:
        return None
    if seen.leader is None:
        for_s = facts.now_s - facts.committed_s
        text = f"nobody has led this run yet, and this validator does not: {seen.reason}"
        return Stall("no_leader", "run", for_s, text, holds=True) if for_s >= limits.trouble_s else None
    if seen.lease_s is not None and facts.now_s - seen.lease_s >= limits.lease_s:
        for_s = facts.now_s - seen.lease_s
        text = (
            f"nobody leads: {seen.leader} did (term {seen.term}), its lease has not changed for {for_s:.0f} s, and "
            f"this validator does not take over: {seen.reason}. Start a validator that may lead, or look at "
            "its storage keys"
        )
        return Stall("no_leader", "run", for_s, text, holds=True)
    for_s = facts.now_s - seen.entry_s
    if for_s < limits.round_s or facts.resting:
        return None
    text = (
        f"{seen.leader} leads (term {seen.term}) and renews its lease, but has written nothing into the log for "
        f"{for_s:.0f} s; its own status tells why"
    )
    return Stall("leader_still", "run", for_s, text, holds=False)


def _overdue(facts: Facts, limits: Limits) -> Stall | None:
    current, merging = facts.round, facts.step is not None and facts.step.merging
    if current is None or current.deadline_s is None or current.phase in ENDING or merging or facts.fault is not None:
        return None
    late_s = facts.now_s - current.deadline_s
    if late_s < limits.overdue_s:
        return None
    text = (
        f"round {current.round} should have ended its phase ({current.phase}) {late_s:.0f} s ago and has not; "
        f"{_awaiting(current.miners)}. Restart the validator: it goes on from the log"
    )
    return Stall("round_overdue", "round", late_s, text, holds=True)


# Effects: the round lacks what only miners can bring.


def _nobody(facts: Facts, limits: Limits) -> Stall | None:
    current = facts.round
    if current is None or current.phase not in ("open", "closing") or any(miner.live for miner in current.miners):
        return None
    for_s = facts.now_s - current.lived_s
    if for_s < limits.members_s:
        return None
    gone = sorted((m for m in current.miners if m.doing), key=lambda miner: miner.silent_s)
    last = f"; last were {_names(gone)}" if gone else ""
    text = (
        f"round {current.round} waits for miners: none has been heard for {for_s:.0f} s{last}. "
        "It goes on with the first that comes; start miners, or look at their machines and their line to this validator"
    )
    return Stall("no_miners", "round", for_s, text, holds=False)


def _idle(facts: Facts, limits: Limits) -> Stall | None:
    """Miners are there, and the round has not begun."""
    current = facts.round
    if current is None or current.phase != "open" or current.deadline_s is not None:
        return None
    live, for_s = [miner for miner in current.miners if miner.live], facts.now_s - current.trained_s
    if not live or for_s < limits.quiet_s:
        return None
    text = (
        f"round {current.round} waits for the first miner to train, for {for_s:.0f} s: {_names(live)}. "
        "Their own notes and logs tell what each waits for"
    )
    return Stall("not_training", "round", for_s, text, holds=False)


def _quiet(facts: Facts, limits: Limits) -> Stall | None:
    current = facts.round
    if current is None or current.phase not in ("open", "closing") or current.deadline_s is None:
        return None
    live, for_s = [miner for miner in current.miners if miner.live], facts.now_s - current.moved_s
    if not live or for_s < limits.quiet_s:
        return None
    text = (
        f"round {current.round} ({current.phase}) has not moved for {for_s:.0f} s: no tokens, no bytes, no entry; "
        f"{_awaiting(live)}. Its deadline ends this in {max(0.0, current.deadline_s - facts.now_s):.0f} s at the latest"
    )
    return Stall("round_still", "round", for_s, text, holds=False)


def _no_quorum(facts: Facts, limits: Limits) -> Stall | None:
    """Those who are here can't bring the quorum before the training time is over."""
    current = facts.round
    if current is None or current.phase != "open" or current.deadline_s is None:
        return None
    for_s = facts.now_s - current.since_s
    workers = [miner for miner in current.miners if miner.live and miner.rate > 0]
    can = current.tokens + sum(miner.rate for miner in workers) * (current.deadline_s - facts.now_s)
    if not workers or for_s < limits.members_s or can >= current.quorum_tokens:
        return None
    text = (
        f"round {current.round} can't reach its quorum of {current.quorum_tokens} tokens with those who are here: "
        f"{_names(workers)} will bring about {can:.0f} by the deadline. It waits for more miners; what comes whole "
        "counts in the next round as well"
    )
    return Stall("no_quorum", "round", for_s, text, holds=False)


def _aborting(facts: Facts, limits: Limits) -> Stall | None:
    if len(facts.aborted) < ABORTS_TOLD:
        return None
    text = (
        f"{len(facts.aborted)} rounds in a row were aborted on revision {facts.head} ({_codes(facts.aborted)}); "
        "`brigade run log` has the evidence of each"
    )
    return Stall("rounds_abort", "run", facts.now_s - facts.aborted_s, text, holds=False)


def _no_commit(facts: Facts, limits: Limits) -> Stall | None:
    for_s = facts.now_s - facts.committed_s
    if for_s <= limits.round_s or facts.following is not None:
        return None
    now = "no round is open" if facts.round is None else f"round {facts.round.round} is {facts.round.phase}"
    text = (
        f"no revision was committed for {for_s:.0f} s, longer than the longest round ({limits.round_s:.0f} s); "
        f"the last was {facts.head}, and {now}"
    )
    return Stall("no_commit", "run", for_s, text, holds=False)


# What stands still beside the run.


def _transfers(facts: Facts, limits: Limits) -> Iterator[Stall]:
    still = [one for one in facts.transfers if facts.now_s - one.moved_s >= limits.transfer_s]
    for one in sorted(still, key=lambda found: found.moved_s)[:MOST_TRANSFERS]:
        for_s = facts.now_s - one.moved_s
        yield Stall("upload_still" if one.who else "read_still", "transfer", for_s, _moves(one, for_s), False, one.what)


def _moves(one: Transfer, for_s: float) -> str:
    sent = "" if one.sent_bytes is None else f"{format_bytes(one.sent_bytes)} of "
    size = "bytes" if one.size_bytes is None else format_bytes(one.size_bytes)
    if not one.who:
        return (
            f"this validator has been reading {one.what} ({sent}{size}) for {for_s:.0f} s; it waits for the storage, "
            "and leaves out of the plan what does not come in time"
        )
    note = f" ({one.note[:MAX_SAID]})" if one.note else ""
    return (
        f"the upload of {one.who}, {one.what}, stands still at {sent}{size} for {for_s:.0f} s{note}; it waits for the "
        "miner's line or for the storage. The round takes what has come whole, and a late one counts in the next"
    )


def _beside(facts: Facts, limits: Limits) -> Iterator[Stall]:
    chain, lost_s = facts.chain, facts.seat_lost_s
    if chain is not None and facts.now_s - chain.since_s >= limits.trouble_s:
        text = (
            f"the chain does not answer ({_said(chain)}): rounds go on with the seats as last read, newcomers and "
            "weights wait; check --chain"
        )
        yield Stall("chain_away", "run", facts.now_s - chain.since_s, text, holds=False)
    if lost_s is not None:
        text = (
            "this validator's hotkey has lost its seat on the subnet: scores can't be paid, and miners can't find it. "
            "Register the hotkey again"
        )
        yield Stall("seat_lost", "run", facts.now_s - lost_s, text, holds=False)


def _where(facts: Facts) -> str:
    current = facts.round
    return f"the run (revision {facts.head})" if current is None else f"round {current.round} ({current.phase})"


def _awaiting(miners: Iterable[Miner]) -> str:
    awaited = [miner for miner in miners if miner.live and miner.awaited]
    return f"it waits for {_names(awaited)}" if awaited else "it waits for no miner"


def _names(miners: list[Miner]) -> str:
    more = f" and {len(miners) - MOST_NAMED} more" if len(miners) > MOST_NAMED else ""
    return ", ".join(miner.told() for miner in miners[:MOST_NAMED]) + more


def _codes(codes: tuple[str, ...]) -> str:
    return ", ".join(codes[-MOST_NAMED:])


def _said(fault: Fault) -> str:
    return fault.said[:MAX_SAID]


_CAUSES = (_paused, _fault, _hangs, _leaderless, _overdue)
_EFFECTS = (_nobody, _idle, _quiet, _no_quorum, _aborting, _no_commit)
