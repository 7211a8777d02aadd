"""A spec so small, and rounds so short, that a whole simulated run takes milliseconds."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from common.identity import KeypairSigner
from common.spec import CodecSpec, RunSpec
from tests.support.specs import tiny_spec
from validator.simulator.audit import violations
from validator.simulator.run import Outcome, Stuck, outcome, run
from validator.simulator.scenario import Fault
from validator.simulator.schedules import random_faults
from validator.simulator.settings import Settings
from validator.simulator.traces import Trace, parse_trace
from validator.simulator.world import World

STEPS = 20
MINERS = 6
ROUNDS = 4
GROUPS = 3


def small_spec(miners: int = MINERS, drip_s: float = 14.0) -> RunSpec:
    """Rounds of 20 steps of a second each, for a model of a few hundred values."""
    spec = tiny_spec()
    model = replace(spec.model, vocab_size=16, hidden_size=8, num_layers=1, ffn_size=8)
    tokens = STEPS * spec.inner.batch_size * spec.data.seq_len * miners
    limits = replace(
        spec.round,
        target_tokens=tokens,
        quorum_tokens=tokens // 4,
        train_deadline_s=60.0,
        submit_deadline_s=20.0,
        heartbeat_s=1.0,
        member_timeout_s=6.0,
        snapshot_every=2,
        drip_s=drip_s,
        late_weight=0.5,
    )
    return replace(
        spec,
        run="simulated",
        owner=KeypairSigner.from_uri("//Owner").hotkey,
        validators=(KeypairSigner.from_uri("//Validator").hotkey,),
        model=model,
        inner=replace(spec.inner, steps_schedule=(STEPS,)),
        codec=CodecSpec(
            kind="topk", density_schedule=(2048, 512), magnitude_bits=16, feedback=0.95, update_density_factor=4
        ),
        round=limits,
    )


def small_settings(
    *faults: Fault, miners: int = MINERS, rounds: int = ROUNDS, seed: int = 1, groups: int = 0
) -> Settings:
    """Machines of a step a second, on which a delta takes about two seconds up."""
    return Settings(
        miners=miners,
        groups=groups,
        rounds=rounds,
        seed=seed,
        faults=faults,
        preset="nano",
        dimension=536,
        up_mbit=1.0,
        down_mbit=10.0,
        boot_s=2.0,
        tokens_per_s=32.0,
        merge_s=3.0,
    )


def run_small(*faults: Fault, bucket: bool = True, drip_s: float = 14.0, seed: int = 1) -> tuple[World, Outcome]:
    """A run under these faults, with everything watched."""
    world = World(small_settings(*faults, seed=seed), small_spec(drip_s=drip_s), bucket=bucket, audit=True)
    run(world)
    return world, outcome(world)


def check(world: World) -> None:
    """All that must hold of any run."""
    assert violations(world) == []


def random_trace(seed: int) -> Trace:
    """Machines that come and go every minute or so."""
    dice = random.Random(seed)
    counts = [dice.choice((0, 1, 1, 1)) for _ in range(24)]
    return parse_trace(json.dumps({"metadata": {"gap_seconds": dice.randint(10, 40)}, "data": [1, *counts]}).encode())


def run_seed(seed: int, bucket: bool = False) -> tuple[World, Outcome, list[str]]:
    """A run under a random schedule, and what is wrong with it."""
    rounds = 4
    faults = random_faults(seed, MINERS, rounds)
    settings = small_settings(*faults, rounds=rounds, seed=seed, groups=GROUPS)
    if seed % 4 == 3:
        settings = replace(settings, trace=random_trace(seed), notice_s=(0.0, 5.0)[seed // 4 % 2])
    world = World(settings, small_spec(drip_s=(0.0, 6.0, 14.0)[seed % 3]), bucket=bucket, audit=True)
    try:
        run(world)
    except Stuck as stuck:
        return world, outcome(world), [str(stuck)]
    return world, outcome(world), violations(world)
