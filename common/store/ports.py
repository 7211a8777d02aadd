"""Free loopback ports for a server that also takes each port + 10,000.

SeaweedFS opens its gRPC services there. Both must be free, and both lie below 32,768, where Linux begins to hand out
ports to outgoing connections: a restart on the same ports would else find one taken by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from common.errors import SetupError
from common.ports import is_free

GRPC_OFFSET = 10_000
_FIRST, _LAST = 11_000, 20_000
"""With the twins up to 30,000; `brigade up` takes its ports above that."""


def free_port_pairs(count: int, rng: random.Random) -> list[int]:
    """``count`` different ports that are free now, each with its gRPC twin; from a random start, so that servers
    started at the same time do not look at the same ones."""
    found: list[int] = []
    for port in _candidates(rng):
        if is_free(port) and is_free(port + GRPC_OFFSET):
            found.append(port)
        if len(found) == count:
            return found
    raise SetupError(f"no {count} free port pairs between {_FIRST} and {_LAST + GRPC_OFFSET} on the loopback")


def _candidates(rng: random.Random) -> Iterator[int]:
    start = rng.randrange(_LAST - _FIRST)
    for step in range(_LAST - _FIRST):
        yield _FIRST + (start + step) % (_LAST - _FIRST)
