"""Small runs with a leader and two standbys, and what one that was meant to survive a fault has to show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from common import keys
from common.runlog.entries import RoundFrozen
from common.runlog.replay import history
from common.spec import RunSpec
from common.store.memory import MemoryStore
from common.timeouts import FOLLOWER_LOOK_S, LEASE_S
from common.units import Revision, Sha256
from tests.simulator.support import check, small_settings, small_spec
from validator.simulator.bucket import BucketRecords
from validator.simulator.roster import validator_keys
from validator.simulator.run import Outcome, outcome, run
from validator.simulator.scenario import Fault
from validator.simulator.world import World

VALIDATORS = 3
MINERS = 4
ROUNDS = 2
LEASE_TOOK_S = LEASE_S + 3 * FOLLOWER_LOOK_S
"""Longest time without a leader when one has gone."""
STEPS = 60
"""Of a second each, so that the time of a lease is a quarter of a round."""


def timed_spec(steps: int = STEPS) -> RunSpec:
    """Rounds of so many steps of a second; three validators may lead."""
    spec = small_spec(MINERS)
    tokens = steps * spec.inner.batch_size * spec.data.seq_len * MINERS
    limits = replace(spec.round, target_tokens=tokens, quorum_tokens=tokens // 4, train_deadline_s=180.0)
    return replace(
        spec,
        validators=tuple(signer.hotkey for signer in validator_keys(VALIDATORS)),
        inner=replace(spec.inner, steps_schedule=(steps,)),
        round=limits,
    )


def run_many(*faults: Fault, seed: int = 1, rounds: int = ROUNDS, bucket: bool = True, steps: int = STEPS) -> World:
    """A run of a few rounds under these faults, with everything checked that must hold of any run."""
    settings = replace(
        small_settings(miners=MINERS, rounds=rounds, seed=seed), validators=VALIDATORS, speed_spread=0.05, faults=faults
    )
    world = World(settings, timed_spec(steps), bucket=bucket, audit=True)
    run(world)
    check(world)
    return world


@cache
def undisturbed(seed: int, steps: int = STEPS) -> tuple[World, Outcome]:
    """The same run without a fault."""
    world = run_many(seed=seed, steps=steps)
    return world, outcome(world)


def moment(world: World, phase: str, share: float) -> float:
    """When that share of a phase of the second round was over; of the gap, when the next round was opened."""
    began = [at_s for at_s, _, _ in world.timeline]
    place = next(i for i, (_, number, name) in enumerate(world.timeline) if (number, name) == (1, phase))
    return began[place] + share * (began[place + 1] - began[place])


def slots(world: World) -> list[bytes]:
    """The log's bytes."""
    assert isinstance(world.records, BucketRecords)
    store: MemoryStore = world.records.store
    run_name = world.spec.run
    return [store.get(keys.log_key(run_name, n), max_bytes=1 << 20).body for n in range(world.records.state.next_seq)]


def plans(world: World) -> list[RoundFrozen]:
    """All plans that count, oldest first."""
    steps = history(world.spec, slots(world))
    entries = [step.entry.data for step in steps if step.void is None and step.entry is not None]
    return [data for data in entries if isinstance(data, RoundFrozen)]


def credited(made: list[RoundFrozen]) -> float:
    """Share of the claimed tokens that plans validated; all of them must be accepted."""
    members = [member for plan in made for member in plan.members]
    assert {member.decision for member in members} == {"accepted"}
    return sum(member.tokens for member in members) / sum(member.tokens_claimed for member in members)


def weights(world: World) -> list[Sha256]:
    """The hashes of all revisions."""
    revisions = world.records.state.revisions
    return [revisions[Revision(number)].sha256 for number in range(len(revisions))]


def lost_tokens(came: Outcome) -> float:
    """What machines could have trained and nobody will ever merge."""
    lost = sum(came.lost_by_cause.values())
    return came.tokens_merged / max(1.0 - lost, 1e-9) * lost
