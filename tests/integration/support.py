"""The run that faults are done to: a model of 27,000 parameters in rounds of a few seconds.

Deltas are dense, 53 KiB each: the codecs have tests of their own. Miners are held to a speed that a fraction of a core
reaches, so that a round's length does not depend on the machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from common.defaults import AUDITED_SHARE, BUTTERFLY, LEADER, REDUNDANCY
from common.spec import CodecSpec, ReduceSpec, RoundSpec, RunSpec
from tests.support.rig import Plan, Rig
from tests.support.rigging import MakeSpec, dataset_of
from tests.support.specs import tiny_spec
from validator.up.bootstrap import Wallets

SEQ_LEN, BATCH, STEPS = 32, 2, 30
STEP_TOKENS = SEQ_LEN * BATCH
SPEED = 640.0
"""Tokens a second of one miner: a round of ``STEPS`` takes about three seconds."""
SLOWED = ("--max-tokens-per-s", str(SPEED))
SUBMIT_S = 10.0
TIMEOUT_S = 5.0
PARTITIONS = 4
"""Of a round's mean, where miners reduce: one of them is drawn to be checked."""


def steps_in(seconds: float) -> int:
    """Inner steps that a miner at ``SPEED`` takes in this time."""
    return round(seconds * SPEED / STEP_TOKENS)


def spec_for(members: int, steps: int = STEPS, reduce: str = LEADER) -> MakeSpec:
    """A run whose rounds are made for so many miners; a quorum is half of what one of them does. ``reduce``: who adds
    up, in the words of `brigade up --reduce`."""
    round_tokens = STEP_TOKENS * steps

    def make(netuid: int, wallets: Wallets, data: Path) -> RunSpec:
        base = tiny_spec()
        dataset, tokenizer = dataset_of(data)
        return dataclasses.replace(
            base,
            run="faults",
            netuid=netuid,
            owner=wallets.owner.hotkey_ss58,
            validators=tuple(wallet.hotkey_ss58 for wallet in wallets.validators),
            model=dataclasses.replace(base.model, hidden_size=32, ffn_size=64, max_seq_len=SEQ_LEN),
            data=dataclasses.replace(base.data, dataset=dataset, tokenizer=tokenizer, seq_len=SEQ_LEN),
            inner=dataclasses.replace(base.inner, batch_size=BATCH, steps_schedule=(steps,), decay_steps=3000),
            codec=CodecSpec(
                kind="bf16", density_schedule=(4096,), magnitude_bits=16, feedback=0.95, update_density_factor=1
            ),
            round=RoundSpec(
                target_tokens=members * round_tokens,
                quorum_tokens=round_tokens // 2,
                train_deadline_s=max(20.0, 2 * round_tokens / SPEED),
                submit_deadline_s=SUBMIT_S,
                heartbeat_s=0.5,
                member_timeout_s=TIMEOUT_S,
                snapshot_every=5,
                overlap=True,
                drip_s=1.0,
                late_weight=0.8,
            ),
            reduce=_butterfly() if reduce == BUTTERFLY else base.reduce,
        )

    return make


def _butterfly() -> ReduceSpec:
    return ReduceSpec("butterfly", PARTITIONS, REDUNDANCY, PARTITIONS // AUDITED_SHARE)


def begun(rig: Rig, names: list[str]) -> None:
    """Wait until all of these were merged in one plan."""
    rig.until(
        lambda: any(all(accepted(plan, name) for name in names) for plan in rig.committed()),
        f"a revision of {', '.join(names)}",
    )


def accepted(plan: Plan, name: str) -> bool:
    return any(member.decision == "accepted" for member in plan.of(name))


def rejected(plan: Plan, name: str, code: str) -> bool:
    return any((member.decision, member.code) == ("rejected", code) for member in plan.of(name))


def late(plan: Plan, name: str) -> bool:
    """Work of the revision before the plan's base was merged."""
    base = plan.frozen.base_revision
    return any(member.decision == "accepted" and member.base_revision < base for member in plan.of(name))


def next_plan(rig: Rig, wanted: Callable[[Plan], bool], what: str) -> Plan:
    """The first committed plan from now on that is as wanted."""
    seen = len(rig.committed())
    return rig.until(lambda: next((plan for plan in rig.committed()[seen:] if wanted(plan)), None), what)


def commits(rig: Rig, count: int = 1) -> None:
    """Wait for so many revisions more."""
    goal = rig.head + count
    rig.until(lambda: rig.head >= goal, f"revision {goal}")
