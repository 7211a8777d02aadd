"""What a soak does to a victim, and how it is taken back again.

Miners and validators are hurt themselves or on their lines. The storage and the chain are hurt themselves or on
everybody's line to them. What was killed or told to end is started again when the event is over, as a supervisor would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from scripts.soaking.schedule import SERVERS
from tests.integration.support import SLOWED
from tests.support.faultproxy import FaultProxy
from tests.support.rig import Rig
from tests.support.rigging import start_chain

SLOW_BPS = 200_000.0
REFUSALS = 12
"""A storage that asks for patience does so for this many requests of everybody."""
ENDS = ("kill", "terminate")
"""Kinds after which the process is gone."""


def hurt(rig: Rig, kind: str, victim: str) -> None:
    """Begin the fault."""
    if kind in ENDS or kind == "stop":
        number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}[kind]
        os.kill(_pid(rig, victim), number)
    elif victim == "storage" and kind == "throttle":
        for proxy in _ways_to(rig, victim):
            proxy.answer(503, REFUSALS, retry_after_s=1)
    else:
        _lines(rig, kind, victim, True)


def heal(rig: Rig, kind: str, victim: str) -> None:
    """End the fault. Blocks until a server that was killed serves again."""
    if kind == "stop":
        os.kill(_pid(rig, victim), signal.SIGCONT)
    elif kind in ENDS:
        _start_again(rig, victim)
    elif victim == "storage" and kind == "throttle":
        for proxy in _ways_to(rig, victim):
            proxy.stop_answering()
    else:
        _lines(rig, kind, victim, False)


def _pid(rig: Rig, victim: str) -> int:
    if victim == "storage":
        assert rig.server.pid is not None
        return rig.server.pid
    return (rig.chain if victim == "chain" else rig.parts[victim]).process.pid


def _start_again(rig: Rig, victim: str) -> None:
    if victim == "storage":
        rig.server.stop()
        rig.server.start(die_with_parent=True, ready_within_s=120.0)
    elif victim == "chain":
        rig.chain.kill()
        rig.chain, _ = start_chain(rig.folder, rig.ports["chain"], rig.stack)
    elif victim in {wallet.name for wallet in rig.wallets.validators}:
        rig.parts[victim].kill()
        rig.start_validator(name=victim)
    else:
        rig.parts[victim].kill()
        rig.start_miner(victim, *SLOWED)


def _lines(rig: Rig, kind: str, victim: str, on: bool) -> None:
    if kind == "throttle":
        link = rig.lines[victim].link
        link.up.rate_bps = link.down.rate_bps = SLOW_BPS if on else None
        return
    for proxy in _ways_to(rig, victim) if victim in SERVERS else _ways_of(rig, victim):
        if kind == "hole":
            proxy.black_hole = on
            continue
        proxy.refuse(on)
        if on:
            proxy.cut_all()


def _ways_to(rig: Rig, server: str) -> Iterable[FaultProxy]:
    """Everybody's line to storage or chain."""
    return [line.storage if server == "storage" else line.chain for line in rig.lines.values()]


def _ways_of(rig: Rig, name: str) -> Iterable[FaultProxy]:
    """All that leads from this machine to others, and from the others to it."""
    to_it = [line.validators[name] for line in rig.lines.values() if name in line.validators]
    return [*rig.lines[name].proxies(), *to_it]
