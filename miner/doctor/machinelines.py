"""The lines about the machine itself: device, memory, disk, speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from common.model.shards import ShardLayers, plan_shards
from common.spec import RunSpec
from common.units import ShardId, format_bytes
from miner.doctor.facts import Facts, Machine, Room, Speed, Trouble
from miner.doctor.needs import MemoryNeed, memory_need, state_bytes
from miner.doctor.report import Level, Line

SHARD = ShardId(0)
LEAST_FREE_BYTES = 64 << 20
"""Of a disk that nothing is known to be needed of: logs, and the state's small files."""
MEMORY_DO = "take a machine with more memory, or end what else uses it"


def shard_of(spec: RunSpec) -> ShardLayers:
    """What a miner of the run holds. Of several shards the first stands for all: they are about equal."""
    return plan_shards(spec.model, spec.num_shards)[SHARD]


def fits(spec: RunSpec, machine: Machine) -> bool:
    """Whether the trainer may be tried on this machine at all."""
    return memory_line(spec, machine, None).level is not Level.SLOW


def machine_lines(facts: Facts) -> Iterator[Line]:
    machine = facts.machine
    if isinstance(machine, Trouble):
        yield Line("device", Level.FAIL, machine.text, machine.do)
        yield Line("memory", Level.SKIPPED, "not checked: no device")
    else:
        yield _device_line(machine)
        yield memory_line(facts.spec, machine, facts.speed)
    yield from _disk_lines(facts)


def _device_line(machine: Machine) -> Line:
    if machine.device_total_bytes is None:
        text = f"no GPU: the CPU trains, {machine.title}, {machine.threads} thread(s)"
        return Line("device", Level.WARN, text, "fine where the answer is that it keeps up")
    return Line("device", Level.OK, f"{machine.device}, {machine.title}, {format_bytes(machine.device_total_bytes)}")


def memory_line(spec: RunSpec | None, machine: Machine, speed: Speed | Trouble | None) -> Line:
    free = format_bytes(machine.device_free_bytes or machine.host_free_bytes)
    if spec is None:
        return Line("memory", Level.SKIPPED, f"{free} free; not compared with a run: none was found, see --preset")
    need = memory_need(spec, shard_of(spec), machine.on_gpu)
    peak_bytes = speed.peak_bytes if isinstance(speed, Speed) else None
    device_bytes = need.device_bytes if peak_bytes is None else peak_bytes
    host_bytes = need.account_bytes + (0 if machine.on_gpu else device_bytes)
    how = _parts(need) if peak_bytes is None else "measured"
    if machine.device_free_bytes is not None:
        text = f"needs {format_bytes(device_bytes)} on the GPU ({how}), {free} are free"
        if device_bytes > machine.device_free_bytes:
            return Line("memory", Level.SLOW, text, MEMORY_DO)
        text += f"; {format_bytes(host_bytes)} beside it, {format_bytes(machine.host_free_bytes)} are free"
    else:
        text = f"needs {format_bytes(host_bytes)} (training {format_bytes(device_bytes)}, {how}), {free} are free"
    if host_bytes > machine.host_free_bytes:
        return Line("memory", Level.SLOW, text, MEMORY_DO)
    peak_host_bytes = host_bytes - need.account_bytes + need.peak_account_bytes
    if peak_host_bytes > machine.host_free_bytes:
        return Line("memory", Level.WARN, f"{text}, and moments may ask for {format_bytes(peak_host_bytes)}", MEMORY_DO)
    return Line("memory", Level.OK, text)


def _parts(need: MemoryNeed) -> str:
    names = ("weights", "optimizer", "activations")
    sizes = (need.weights_bytes, need.optimizer_bytes, need.activations_bytes)
    return "computed: " + ", ".join(f"{n} {format_bytes(s)}" for n, s in zip(names, sizes, strict=True))


def _disk_lines(facts: Facts) -> Iterator[Line]:
    """One for each disk."""
    ordered = sorted(facts.rooms, key=lambda room: room.disk)
    for _, group in groupby(ordered, key=lambda room: room.disk):
        yield _disk_line(list(group), facts)


def _disk_line(rooms: list[Room], facts: Facts) -> Line:
    where = " and ".join(f"{room.folder} ({room.purpose})" for room in rooms)
    if locked := [room.folder for room in rooms if not room.writable]:
        return Line("disk", Level.FAIL, f"{locked[0]} can't be written", "choose another folder with --dir or --cache")
    parts = [part for room in rooms for part in _room_need(room, facts)]
    need_bytes = max(LEAST_FREE_BYTES, sum(size for _, size in parts))
    free_bytes = min(room.free_bytes for room in rooms)
    asked = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts) or "what a run needs is not known"
    text = f"{format_bytes(free_bytes)} free in {where}, {format_bytes(need_bytes)} needed ({asked})"
    if free_bytes < need_bytes:
        return Line("disk", Level.FAIL, text, "make room, or choose another disk with --dir or --cache")
    return Line("disk", Level.OK, text)


def _room_need(room: Room, facts: Facts) -> Iterator[tuple[str, int]]:
    if room.purpose == "state" and facts.spec is not None:
        yield "state", max(0, state_bytes(facts.spec, shard_of(facts.spec)) - room.held_bytes)
    if room.purpose == "cache" and facts.dataset_bytes is not None:
        yield "dataset", max(0, facts.dataset_bytes - room.held_bytes)


def speed_line(facts: Facts) -> Line:
    speed = facts.speed
    if speed is None:
        return Line("speed", Level.SKIPPED, "not measured: see device, memory and run")
    if isinstance(speed, Trouble):
        return Line("speed", Level.SLOW, speed.text, speed.do)
    text = f"{speed.tokens_per_s:,.0f} tokens/s in {speed.steps} inner step(s) of {speed.step_tokens:,} tokens"
    if not speed.whole_batch:
        text += "; whole steps would have taken too long here, and may be faster by the token"
    return Line("speed", Level.OK, text)
