"""What befalls whom, and when: a pure function of seed, length and who there is.

Invariants: the same arguments give the same schedule; every event is over before the run is, so that what comes last
is recovered from as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_S = 30.0
"""The run begins in peace."""
CALM_S = 45.0
"""And ends so, after the last event is over."""
GAP_S = (8.0, 25.0)
LASTS_S = (5.0, 25.0)
SERVERS = ("storage", "chain")
ROLES = ("miner", "miner", "validator", "leader", "storage", "chain")
"""Whom an event befalls, each as likely as it stands here."""
KINDS = {
    "miner": ("kill", "stop", "terminate", "cut", "hole", "throttle"),
    "validator": ("kill", "stop", "terminate", "cut", "hole", "throttle"),
    "leader": ("kill", "stop", "cut", "hole"),
    "storage": ("kill", "stop", "cut", "hole", "throttle"),
    "chain": ("kill", "stop", "cut", "hole"),
}


@dataclass(frozen=True)
class Event:
    """``victim`` is a process's name, ``storage``, ``chain`` or ``leader``: whoever leads then. What ends it comes
    ``lasts_s`` later."""

    at_s: float
    kind: str
    victim: str
    lasts_s: float


def schedule(seed: int, minutes: float, miners: Sequence[str], validators: Sequence[str]) -> list[Event]:
    """The events of a run, in order, in seconds from its start."""
    dice = random.Random(f"{seed} {minutes:g} {' '.join(miners)} {' '.join(validators)}")
    events: list[Event] = []
    at_s, end_s = FIRST_S, minutes * 60 - CALM_S
    while True:
        role = dice.choice(ROLES)
        names = {"miner": list(miners), "validator": list(validators)}.get(role, [role])
        event = Event(at_s, dice.choice(KINDS[role]), dice.choice(names), dice.uniform(*LASTS_S))
        if event.at_s + event.lasts_s > end_s:
            return events
        events.append(event)
        at_s += dice.uniform(*GAP_S)
