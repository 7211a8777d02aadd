"""One simulation from beginning to end, and what came of it.

Goodput = tokens merged (a late token counts by its weight) / tokens that the machines could have trained, at their own
speed, in the time they were online. What was trained but not decided on at the end is left out of both. Utilisation =
time training / time online. Survival = tokens merged / tokens trained. Invariant: merged, lost and unfinished tokens
are together what the machines could have trained.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

from common.errors import BrigadeError
from common.spec import RunSpec
from validator.simulator.faults import Faults
from validator.simulator.machines import Mode
from validator.simulator.miner import Miner
from validator.simulator.settings import Settings
from validator.simulator.tally import CAUSES
from validator.simulator.traces import ALWAYS
from validator.simulator.world import World

RARELY = 200_000
"""Allocations between two collections."""


class Stuck(BrigadeError):
    """The simulation does not end: rounds neither commit nor abort in the time that they may take."""


@dataclass(frozen=True)
class Outcome:
    """What a simulation came to. Shares are of the tokens that the machines could have trained."""

    goodput: float
    utilisation: float
    survival: float
    rounds_committed: int
    rounds_aborted: int
    lost_by_cause: dict[str, float]
    """boot, sync, idle: time; death, late, rejected: trained, and for nothing."""
    phase_seconds: dict[str, float]
    """Time of the rounds in each phase; gap: between rounds."""
    bytes_up: float
    """Of one miner, on average."""
    bytes_down: float
    seconds: float
    """Virtual time."""
    tokens_merged: int
    tokens_unfinished: int
    """Trained, and not decided on at the end."""
    loss_first: float
    loss_last: float
    aborts: dict[str, int]
    """By code."""
    reduced_by_miners: float
    """Share of the partitions of all means that came from the owners' copies; 0 where the leader reduces."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def simulate(settings: Settings, spec: RunSpec | None = None) -> Outcome:
    """Run a simulation on facts alone. Raises ``Stuck``, and what is wrong with the settings."""
    world = World(settings, spec)
    run(world)
    return outcome(world)


def run(world: World) -> None:
    """Let everything happen until the rounds are over. Raises ``Stuck``."""
    with _rare_collections(), closing(world.roster):
        _run(world)


def _run(world: World) -> None:
    faults = Faults(world)
    absent = faults.absent_at_first()
    for miner in world.miners:
        if world.settings.trace is not None:
            _follow_trace(world, miner)
        elif miner.index not in absent:
            world.queue.after(0.0, miner.start)
    for validator in world.validators:
        validator.start()
    limit_s = world.longest_s()
    while not (world.done and world.idle):
        if not world.queue.step(limit_s):
            state = world.records.state
            ended = state.rounds_committed + state.rounds_aborted
            raise Stuck(f"only {ended} of {world.settings.rounds} rounds ended within {limit_s:.0f} s of virtual time")
    close(world)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Events make many short-lived cycles of closures: looking for them at the usual pace costs half of all time."""
    before = gc.get_threshold()
    gc.set_threshold(RARELY, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def close(world: World) -> None:
    """Book what is still under way."""
    world.phase_began("end")
    for miner in world.miners:
        miner.machine.close()
        miner.close_books()
    world.ghosts.close_books()


def outcome(world: World) -> Outcome:
    """The figures of a simulation that has ended."""
    tallies = [miner.tally for miner in world.miners]
    merged = sum(tally.merged for tally in tallies)
    trained = sum(tally.trained_steps * tally.step_tokens for tally in tallies)
    lost = {cause: float(sum(tally.lost.get(cause, 0) for tally in tallies)) for cause in CAUSES}
    for cause, modes in (("boot", (Mode.BOOT,)), ("sync", (Mode.SYNC,)), ("idle", (Mode.IDLE, Mode.STOPPED))):
        lost[cause] += sum(_tokens_in(miner, mode) for miner in world.miners for mode in modes)
    lost["death"] += sum(tally.partial_tokens for tally in tallies)
    unfinished = sum(tally.unfinished for tally in tallies)
    possible = max(1.0, merged + sum(lost.values()))
    online_s = sum(s for m in world.miners for mode, s in m.machine.spent_s.items() if mode is not Mode.OFF)
    training_s = sum(miner.machine.spent_s[Mode.TRAIN] for miner in world.miners)
    state, count = world.records.state, len(world.miners)
    return Outcome(
        goodput=merged / possible,
        utilisation=training_s / max(online_s, 1e-9),
        survival=merged / max(1, trained - unfinished),
        rounds_committed=state.rounds_committed,
        rounds_aborted=state.rounds_aborted,
        lost_by_cause={cause: tokens / possible for cause, tokens in lost.items()},
        phase_seconds={name: world.phase_s.get(name, 0.0) for name in _PHASES},
        bytes_up=sum(miner.machine.up.moved_bytes for miner in world.miners) / count,
        bytes_down=sum(miner.machine.down.moved_bytes for miner in world.miners) / count,
        seconds=world.queue.now_s,
        tokens_merged=merged,
        tokens_unfinished=unfinished,
        loss_first=world.losses[0],
        loss_last=world.losses[-1],
        aborts=dict(sorted(world.aborts.items())),
        reduced_by_miners=world.traffic.share_by_miners,
    )


_PHASES = ("open", "closing", "frozen", "reduced", "gap")


def _tokens_in(miner: Miner, mode: Mode) -> float:
    return miner.machine.spent_s[mode] * miner.machine.power.tokens_per_s


def _follow_trace(world: World, miner: Miner) -> None:
    """Come up and go as the trace says, one change at a time."""
    trace, settings = world.settings.trace, world.settings
    uptime = ALWAYS if trace is None else trace.machine(miner.index, settings.miners)
    changes = uptime.changes()

    def wait() -> None:
        for at_s, up in islice(changes, 1):
            if not up and settings.notice_s > 0:
                world.queue.at(at_s - settings.notice_s, miner.drain)
            world.queue.at(at_s, partial(change, up))

    def change(up: bool) -> None:
        if up:
            miner.start()
        else:
            miner.die(disk=False)
        wait()

    wait()
