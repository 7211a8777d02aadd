"""The machine itself: device, memory, room on its disks. Reads, never changes.

A rented machine is often a container: what its control group allows counts, not what the host has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from common.errors import SetupError
from common.model.device import choose_device
from miner.doctor.facts import Machine, Room, Trouble

FreeBytes = Callable[[Path], int]
_GROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def free_bytes(folder: Path) -> int:
    """Room on the disk of an existing folder."""
    return shutil.disk_usage(folder).free


def look_at_machine(device: str, threads: int) -> Machine | Trouble:
    """The device that ``--device`` means here. Imports PyTorch."""
    try:
        name = choose_device(device)
    except SetupError as error:
        return Trouble(str(error))
    if name == "cpu":
        return Machine(name, _cpu_title(), threads, host_free_bytes())
    import torch

    try:
        device_free_bytes, total_bytes = torch.cuda.mem_get_info(name)
        title = torch.cuda.get_device_name(name)
    except RuntimeError as error:
        return Trouble(f"{name} does not answer: {error}", "look at nvidia-smi, and at the driver's version")
    return Machine(name, title, threads, host_free_bytes(), device_free_bytes, total_bytes)


def look_at_room(purpose: str, folder: Path, free: FreeBytes, held: str = "") -> Room:
    """Of a folder that may not exist yet; ``held``: what in it counts as held already, a path below it."""
    there = next(path for path in (folder, *folder.parents) if _is_there(path))
    inside = folder / held
    held_bytes = sum(path.stat().st_size for path in inside.rglob("*") if path.is_file()) if held else 0
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return Room(purpose, str(folder), there.stat().st_dev, free(there), writable, held_bytes)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # behind a folder that we may not look into
        return False


def host_free_bytes() -> int:
    """Memory that a process can still take, by the kernel and by the control group that we are in."""
    return min(_available_bytes(), _group_limit("memory.max", "memory.current"))


def resident_bytes(peak: bool) -> int:
    """Memory of this process, now or at most so far."""
    return _kilobytes(Path("/proc/self/status"), "VmHWM:" if peak else "VmRSS:") or 0


def _available_bytes() -> int:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:") or _UNLIMITED


def _kilobytes(path: Path, name: str) -> int | None:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None


def _group_limit(limit: str, used: str) -> int:
    """What the group may still take; pages of files that it holds are counted as taken, so it is a lower bound."""
    try:
        most, taken = (_GROUP / limit).read_text().strip(), int((_GROUP / used).read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if most == "max" else max(0, int(most) - taken + _reclaimable_bytes())


def _reclaimable_bytes() -> int:
    """Pages of files in the group that nobody waits for."""
    try:
        lines = (_GROUP / "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        return 0


def _cpu_title() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return "unknown processor"
