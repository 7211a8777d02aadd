"""The doctor's look at everything: the machine, then the run, then the training speed, when nothing else goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from common.blocking import in_thread
from common.defaults import Choices, make_spec
from common.spec import RunSpec
from common.units import Hotkey, Sha256, format_duration
from miner.doctor.choices import Ports, Settings
from miner.doctor.facts import Facts, Machine, Speed, Trouble
from miner.doctor.machine import look_at_machine, look_at_room
from miner.doctor.machinelines import fits, shard_of
from miner.doctor.runlook import RunLook
from miner.doctor.speed import measure_speed
from miner.doctor.verdict import head_of


async def examine(settings: Settings, ports: Ports) -> Facts:
    """Everything there is to find out. Raises ``OperatorError`` for settings that mean nothing."""
    machine = look_at_machine(settings.device, settings.threads)
    facts = Facts(machine, (), None, None)
    if ports.chain is not None and settings.netuid is not None:
        facts = await RunLook(settings, ports, ports.chain, settings.netuid).look(facts)
    elif settings.preset is not None:
        facts = replace(facts, spec=preset_spec(settings.preset, settings.num_shards))
    held = "" if facts.spec is None or facts.remote is None else f"datasets/{facts.spec.data.dataset}"
    rooms = (
        look_at_room("state", settings.folder, ports.free_bytes),
        look_at_room("cache", settings.cache, ports.free_bytes, held),
    )
    facts = replace(facts, rooms=rooms)
    if facts.spec is None or not isinstance(machine, Machine) or not fits(facts.spec, machine):
        return facts
    try:
        return replace(facts, speed=await _speed(facts, facts.spec, machine, ports))
    except RuntimeError as error:  # PyTorch's, of a driver or a library that does not do what it should
        said = (str(error) or type(error).__name__).splitlines()[0]
        return replace(facts, machine=Trouble(f"training on {machine.device} failed: {said}", "look at its driver"))


def preset_spec(preset: str, num_shards: int = 1) -> RunSpec:
    """The run that the preset makes. Raises ``OperatorError``."""
    nobody = Hotkey("nobody")
    choices = Choices(run="preset", preset=preset, seed=0, miners=1, num_shards=num_shards)
    return make_spec(choices, 0, nobody, [nobody], Sha256("0" * 64), "none")


async def _speed(facts: Facts, spec: RunSpec, machine: Machine, ports: Ports) -> Speed | Trouble | None:
    """Measured in a thread that is left behind when it takes too long, as a step can't be broken off."""
    if spec.num_shards != 1:
        return None
    told: list[Speed] = []
    limits = ports.limits.speed
    try:
        async with asyncio.timeout(2 * limits.longest_s):
            await in_thread(
                lambda: measure_speed(
                    spec, shard_of(spec), machine, head_of(facts), limits, ports.clock.monotonic_s, told.append
                )
            )
    except TimeoutError:
        if not told:
            long = format_duration(2 * limits.longest_s)
            return Trouble(f"not one small inner step was over in {long}", "take a faster machine")
    except torch.OutOfMemoryError as error:
        return Trouble(f"the training found no memory: {str(error).splitlines()[0]}", "take a machine with more")
    return told[-1]
