"""Rounds that miners reduce, in virtual time: whatever happens to owners, the round commits the leader's own bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from common import keys
from common.codec.container import HEADER_BYTES, partition_ranges
from common.codec.params import delta_params
from common.errors import OperatorError
from common.merge.partition import slices_of
from common.reductions import decode_reduction
from common.spec import MAX_PARTITIONS, ReduceSpec, RunSpec
from common.units import Revision, RoundId, Sha256
from tests.simulator.support import check, small_settings, small_spec
from validator.round.deadlines import REDUCE_SHARE, Deadlines
from validator.simulator.bucket import BucketRecords
from validator.simulator.run import outcome, run
from validator.simulator.scenario import Fault, Moment, Target
from validator.simulator.schedules import random_faults
from validator.simulator.settings import Settings
from validator.simulator.traffic import RoundTraffic
from validator.simulator.world import World

MINERS = 8
GROUPS = 4
PARTITIONS = 8
AUDITS = 2
STRUCK = RoundId(0)
"""The round in whose reduction the fault comes: up to it the run is the one that a leader alone reduces."""
AWAY_S = 200.0
"""Longer than the leader waits for anybody."""


def spec_of(kind: str) -> RunSpec:
    """A model of seven chunks, so that partitions are real ranges, one of them empty."""
    spec = small_spec(MINERS)
    model = replace(spec.model, vocab_size=512, hidden_size=32, ffn_size=64)
    by_leader = ReduceSpec("leader", PARTITIONS, 1, 0)
    by_miners = ReduceSpec("butterfly", PARTITIONS, 2, AUDITS)
    return replace(spec, model=model, reduce=by_leader if kind == "leader" else by_miners)


def play(*faults: Fault, kind: str = "butterfly", seed: int = 1) -> World:
    """Three rounds, with everything checked that must hold of any run: `verify` recomputes each as a leader alone."""
    settings = replace(
        small_settings(*faults, miners=MINERS, rounds=3, seed=seed, groups=GROUPS),
        block_s=1.0,
        up_mbit=20.0,
        down_mbit=50.0,
    )
    world = World(settings, spec_of(kind), bucket=True, audit=True)
    run(world)
    check(world)
    return world


@cache
def undisturbed() -> World:
    return play()


@cache
def alone() -> World:
    return play(kind="leader")


def weights(world: World) -> list[Sha256]:
    return [node.shards[0].weights_sha256 for node in world.records.state.revisions.values()]


def struck(kind: str, target: Target, after_s: float, size: float = 1.0) -> World:
    """A run in which a fault comes so long after the partitions of a round were dealt."""
    at_s = undisturbed().traffic.rounds[STRUCK].dealt_at_s + after_s
    return play(Fault(kind, target, at_s, AWAY_S, size))


def test_miners_reduce_to_what_a_leader_alone_commits() -> None:
    world = undisturbed()
    assert weights(world)[: STRUCK + 2] == weights(alone())[: STRUCK + 2]
    assert len(weights(world)) == 4
    for traffic in world.traffic.rounds.values():
        assert traffic.alone.keys() <= {"the draw"}
        assert traffic.by_miners >= PARTITIONS - 1 - AUDITS
    assert outcome(world).reduced_by_miners > 0.5
    assert outcome(alone()).reduced_by_miners == 0


def test_the_bucket_keeps_the_owners_signed_words() -> None:
    world = undisturbed()
    assert isinstance(world.records, BucketRecords)
    store, spec = world.records.store, world.spec
    words = [
        decode_reduction(store.get(info.key, max_bytes=info.size_bytes).body, spec.run)[0]
        for info in store.list(keys.reductions_prefix(spec.run, STRUCK))
    ]
    assert {word.signer for word in words} <= set(world.hotkeys)
    named = [word.key_of(copy) for word in words for copy in word.copies]
    assert len(named) == 2 * world.traffic.rounds[STRUCK].dealt
    assert all(store.head(key) is not None for key in named)


def middle_s() -> float:
    """From the deal to the middle of what the owners do."""
    usual = undisturbed().traffic.rounds[STRUCK]
    return (usual.waited_s - usual.dealt_after_s) / 2


FAULTS = {
    "an owner is killed": ("die", Target("miner", 2.0), 1.0),
    "a quarter of the owners is killed": ("die", Target("share", 0.25), 1.0),
    "an owner is stopped": ("stop", Target("miner", 2.0), 1.0),
    "an owner is cut off": ("link_cut", Target("miner", 2.0), 1.0),
    "an owner is slow": ("link_slow", Target("miner", 2.0), 0.001),
    "a provider goes down": ("die", Target("group", 1.0), 1.0),
    "a provider is cut off": ("link_cut", Target("group", 1.0), 1.0),
    "a provider is slow": ("link_slow", Target("group", 1.0), 0.001),
    "all owners are killed": ("die", Target("miners"), 1.0),
    "the storage does not answer": ("storage_down", Target("storage"), 1.0),
}


@pytest.mark.parametrize("when", ["at the deal", "in the middle"])
@pytest.mark.parametrize("name", FAULTS)
def test_owners_that_are_gone_or_slow_lose_nothing(name: str, when: str) -> None:
    kind, target, size = FAULTS[name]
    after_s = 0.1 if when == "at the deal" else middle_s()
    world, usual = struck(kind, target, after_s, size), undisturbed()
    assert outcome(world).rounds_aborted == 0
    assert weights(world)[: STRUCK + 2] == weights(alone())[: STRUCK + 2]
    traffic = world.traffic.rounds[STRUCK]
    assert traffic.dealt == usual.traffic.rounds[STRUCK].dealt
    assert traffic.by_miners + sum(traffic.alone.values()) == traffic.dealt
    if target.kind in ("miner", "group") and when == "at the deal":
        assert traffic.alone["a late owner"] > 0
        assert traffic.by_miners > 0, "what others owned came from them"


def test_the_dead_are_not_waited_for_and_the_slow_only_until_the_deadline() -> None:
    group = Target("group", 1.0)
    usual = undisturbed().traffic.rounds[STRUCK].waited_s
    dead = struck("die", group, 0.1).traffic.rounds[STRUCK].waited_s
    slow = struck("link_slow", group, 0.1, 0.001).traffic.rounds[STRUCK]
    after_s = REDUCE_SHARE * Deadlines.of(spec_of("butterfly")).finish_s
    assert usual < dead < slow.waited_s <= slow.dealt_after_s + after_s + 1.0


def test_a_killed_owner_that_comes_back_in_time_does_its_duties() -> None:
    at_s = undisturbed().traffic.rounds[STRUCK].dealt_at_s + 0.1
    world = play(Fault("die", Target("miner", 2.0), at_s, 1.0, 1.0))
    assert world.traffic.rounds[STRUCK].alone.keys() <= {"the draw"}
    assert weights(world)[: STRUCK + 2] == weights(alone())[: STRUCK + 2]


@pytest.mark.parametrize("kind", ["die", "stop"])
def test_a_leader_that_dies_while_owners_reduce_loses_no_round(kind: str) -> None:
    at_s = undisturbed().traffic.rounds[STRUCK].dealt_at_s + middle_s()
    world = play(Fault(kind, Target("validator", 0.0), at_s, 5.0, 1.0))
    assert outcome(world).rounds_aborted == 0
    assert weights(world)[: STRUCK + 2] == weights(alone())[: STRUCK + 2]


def test_an_owner_that_lies_changes_nothing_and_reduces_nothing_more_whoever_leads() -> None:
    at_s = undisturbed().traffic.rounds[STRUCK].dealt_at_s - 1.0
    lying = Fault("wrong_mean", Target("miner", 2.0), at_s, AWAY_S, 1.0)
    restart = Fault("die", Target("validator", 0.0), Moment(RoundId(STRUCK + 1), "open"), 1.0, 1.0)
    world = play(lying, restart)
    assert outcome(world).rounds_aborted == 0
    assert weights(world)[: STRUCK + 2] == weights(alone())[: STRUCK + 2]
    struck_round, *later = (world.traffic.rounds[RoundId(number)] for number in range(3))
    assert struck_round.alone["copies that differ"] > 0
    assert struck_round.up[2] > 0
    assert [traffic.up[2] for traffic in later] == [0, 0]
    assert all(traffic.by_miners > 0 for traffic in later)


def test_owners_of_one_autonomous_system_are_related() -> None:
    traffic = measured(8, partitions=8, asns=1).traffic.rounds[RoundId(0)]
    assert traffic.alone == {"related owners": traffic.dealt}


def test_lying_owners_need_owners() -> None:
    with pytest.raises(OperatorError, match="--reduce butterfly"):
        play(Fault("wrong_mean", Target("miner", 2.0), 1.0, AWAY_S, 1.0), kind="leader")


def test_random_faults_violate_nothing() -> None:
    for seed in range(10):
        play(*random_faults(seed, MINERS, 3), seed=seed)


def measured(miners: int, partitions: int = 64, reduce: str = "butterfly", asns: int = 0) -> World:
    """Facts alone at the size of nano, of storage so near that nobody is late."""
    settings = Settings(
        miners=miners,
        rounds=2,
        reduce=reduce,
        partitions=partitions,
        asns=asns,
        density=64,
        dimension=512,
        block_s=1.0,
        storage_latency_s=0.001,
    )
    world = World(settings)
    run(world)
    return world


def moved(traffic: RoundTraffic, miners: int) -> tuple[list[int], list[int]]:
    return [traffic.down[i] for i in range(miners)], [traffic.up[i] for i in range(miners)]


@pytest.mark.parametrize("miners", [8, 32])
def test_owners_read_and_send_just_their_ranges(miners: int) -> None:
    """The sums are those that codec and redundancy give; everybody reads each delta's header once."""
    world = measured(miners)
    spec, values = world.spec, world.sizes.values
    ranges = partition_ranges(values, delta_params(spec.codec, Revision(0)), spec.reduce.partitions)
    down, up = moved(world.traffic.rounds[RoundId(0)], miners)
    assert sum(down) == miners * (2 * sum(end - start for start, end in ranges) + miners * HEADER_BYTES)
    assert sum(up) == 2 * sum(where.mean_bytes for where in slices_of(spec, values)) == 2 * 4 * values


def test_what_a_miner_reads_does_not_grow_with_their_number_and_what_it_sends_falls() -> None:
    few, many = (moved(measured(n).traffic.rounds[RoundId(1)], n) for n in (8, 64))
    assert sum(many[0]) / 64 - 64 * HEADER_BYTES == sum(few[0]) / 8 - 8 * HEADER_BYTES, "but for the headers"
    assert sum(many[1]) / 64 == sum(few[1]) / 64
    assert max(many[0]) <= 1.5 * max(few[0])
    assert median(many[0]) == pytest.approx(median(few[0]), rel=0.1)
    assert median(many[1]) == pytest.approx(median(few[1]) / 8, rel=0.1)


def test_with_a_leader_miners_reduce_nothing() -> None:
    traffic = measured(8, partitions=0, reduce="leader").traffic.rounds[RoundId(1)]
    assert (traffic.dealt, sum(traffic.down.values()), sum(traffic.up.values())) == (0, 0, 0)
    assert traffic.gates_bytes > 0


def test_settings_that_contradict_each_other_are_refused() -> None:
    for bad in ({"reduce": "nobody"}, {"partitions": 4}, {"reduce": "butterfly", "partitions": MAX_PARTITIONS + 1}):
        with pytest.raises(ValueError, match=r"reduce|partitions"):
            Settings(**bad)  # type: ignore[arg-type]


def test_a_small_run_is_reduced_by_miners_though_blocks_take_long_to_be_final() -> None:
    """Blocks of 12 s come final after more than a quarter of the shortest time to finish a round."""
    settings = Settings(miners=MINERS, rounds=2, reduce="butterfly", partitions=64, density=64, dimension=512)
    world = World(settings)
    run(world)
    finish_s = Deadlines.of(world.spec).finish_s
    for traffic in world.traffic.rounds.values():
        assert REDUCE_SHARE * finish_s < traffic.dealt_after_s < traffic.waited_s
        assert traffic.alone.keys() == {"the draw"}
