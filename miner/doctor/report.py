"""What the doctor says: a line for each thing that it looked at, the answer, the exit code. No judgement of its own."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from common.units import printable
from miner.doctor.facts import Facts, Link, Speed
from miner.doctor.pace import Answer


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Worth knowing; nothing has to be done."""
    SLOW = "SLOW"
    """The machine would not keep up."""
    FAIL = "FAIL"
    """The environment is broken: nobody could mine like this."""
    SKIPPED = "-"
    """Not looked at, since something else is missing."""


GOOD, NOT_KEPT_UP, BROKEN = 0, 1, 3


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    check: str
    level: Level
    text: str
    do: str = ""

    def __str__(self) -> str:
        return printable(f"{self.level:<5}{self.check:<11}{self.text}{f': {self.do}' if self.do else ''}")


@dataclass(frozen=True)
class Report:
    """All lines, the answer last."""

    lines: tuple[Line, ...]
    answer: Answer | None
    """In figures; None where the training was not measured."""

    @property
    def exit_code(self) -> int:
        """A broken environment stands above slowness: it has to be mended first."""
        levels = {line.level for line in self.lines}
        if Level.FAIL in levels:
            return BROKEN
        return NOT_KEPT_UP if Level.SLOW in levels else GOOD

    @property
    def keeps_up(self) -> bool | None:
        """The answer; None where it is not known."""
        last = self.lines[-1].level
        return None if last is Level.SKIPPED else last is not Level.SLOW

    def to_json(self, facts: Facts) -> dict[str, Any]:
        """For programs. Rates are in bits a second; what is not known is null."""
        remote, speed, found = facts.remote, facts.speed, self.answer
        return {
            "exit_code": self.exit_code,
            "keeps_up": self.keeps_up,
            "tokens_a_round": found.tokens if found else None,
            "share_of_a_round": found.share if found else None,
            "round_s": found.round_s if found else None,
            "tokens_per_s": speed.tokens_per_s if isinstance(speed, Speed) else None,
            "downlink_bps": _rate(remote.downlink if remote else None),
            "uplink_bps": _rate(remote.uplink if remote else None),
            "uplink_wanted_bps": _finite(found.wanted_up_bps) if found else None,
            "uplink_least_bps": _finite(found.least_up_bps) if found else None,
            "downlink_least_bps": _finite(found.least_down_bps) if found else None,
            "lines": [asdict(line) for line in self.lines],
        }


def _rate(link: object) -> float | None:
    return link.rate_bps if isinstance(link, Link) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
