"""What must hold of every simulation, whatever its faults: the oracle of the fault matrix.

- no accepted work counted twice, and no entry of the leader's refused by the log's rules;
- every token that the log merged belongs to exactly one miner's tally, and each tally adds up;
- conservation: what a miner trained is merged, clipped, weighed down, decayed, rejected, in its residual or pending;
- weights bit-equal to a recomputation from the plans, by ``verify_run`` on the bucket, when there is one.
"""

from __future__ import annotations

import numpy as np

from common.errors import Rejected
from common.runlog.proving import VerifyError
from common.runlog.verify import verify_run
from validator.simulator.bucket import BucketRecords
from validator.simulator.machines import Mode
from validator.simulator.miner import Miner
from validator.simulator.work import Session
from validator.simulator.world import World

ROUNDING = 1e-5
"""Of the largest value that went through an account."""


def violations(world: World) -> list[str]:
    """What is wrong with a simulation that has ended; empty if nothing is."""
    found = list(world.violations)
    found += _tokens(world)
    for miner in world.miners:
        found += _time(miner)
    for session in world.sessions:
        found += _mass(session)
    return found + _bucket(world)


def _tokens(world: World) -> list[str]:
    merged = sum(miner.tally.merged for miner in world.miners)
    logged = world.records.state.tokens_merged
    if merged != logged:
        return [f"the log merged {logged} tokens, the miners' tallies have {merged}"]
    return [
        f"miner {miner.index} trained {trained} tokens, of which {known} are booked"
        for miner in world.miners
        if (trained := miner.tally.trained_steps * miner.tally.step_tokens) != (known := miner.tally.known)
    ]


def _time(miner: Miner) -> list[str]:
    """What the machine's time could have trained is what was trained, and what was under way at an end."""
    power, tally = miner.machine.power, miner.tally
    possible = miner.machine.spent_s[Mode.TRAIN] * power.tokens_per_s
    booked = tally.trained_steps * tally.step_tokens + tally.partial_tokens + tally.under_way
    if abs(possible - booked) > 1e-6 * possible + 1.0:
        return [f"miner {miner.index} trained for {possible:.0f} tokens, but {booked:.0f} are booked"]
    return []


def _mass(session: Session) -> list[str]:
    if session.audit is None:
        return []
    account = session.account
    held = account.residual.astype(np.float64)
    largest = float(np.abs(session.audit.moved).max(initial=0.0)) + session.audit.largest
    for pending in (account.pending, account.due):
        if pending is not None:
            held = held + pending.target
    off = float(np.abs(session.audit.moved - session.audit.gone - held).max(initial=0.0))
    if not off <= ROUNDING * max(largest, 1e-30):
        return [f"the account of {session.hotkey} is off by {off:.3g} where values are up to {largest:.3g}"]
    return []


def _bucket(world: World) -> list[str]:
    if not isinstance(world.records, BucketRecords):
        return []
    try:
        report = verify_run(world.records.store, world.spec.run)
    except (VerifyError, Rejected) as refusal:
        return [f"verify refuses the run: {refusal}"]
    found = [f"verify calls {key} suspicious: {why}" for key, why in report.suspicious.items()]
    if report.state.head != world.head or report.state.tokens_merged != world.records.state.tokens_merged:
        found.append("verify reads another state than the leader's")
    return found
