"""The ports of a run's servers, chosen once and kept in ``<dir>/ports.json``, so that a restart keeps addresses.

Ports lie below 32,768, where Linux begins to hand out ports to outgoing connections: otherwise one could be taken by
chance while its server restarts. The storage server keeps its own ports (``common.store.seaweed``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from common.errors import SetupError
from common.files import write_atomically
from common.ports import is_free

FIRST, LAST = 30_001, 32_700
"""Above the storage server's and their twins: that server chooses its ports at the same time."""


def choose_ports(path: Path, servers: Mapping[str, str], rng: random.Random) -> dict[str, int]:
    """A free port for each of ``servers`` (name → IP): those in ``path`` where they are still free, else new ones."""
    kept = kept_ports(path)
    ports: dict[str, int] = {}
    for name, ip in servers.items():
        old = kept.get(name)
        ports[name] = old if old and is_free(old, ip) else _free(ip, set(ports.values()), rng)
    if ports != kept:
        write_atomically(path, json.dumps(ports).encode())
    return ports


def _free(ip: str, taken: set[int], rng: random.Random) -> int:
    for _ in range(1000):
        port = rng.randint(FIRST, LAST)
        if port not in taken and is_free(port, ip):
            return port
    raise SetupError(f"no free port between {FIRST} and {LAST} on {ip}")


def kept_ports(path: Path) -> dict[str, int]:
    """The ports chosen before; empty in a new folder. SetupError when the file is damaged."""
    if not path.exists():
        return {}
    try:
        ports = json.loads(path.read_bytes())
    except ValueError:
        ports = None
    if not isinstance(ports, dict) or not all(isinstance(port, int) for port in ports.values()):
        raise SetupError(f"{path} is damaged; delete it, and the servers take new ports")
    return ports
