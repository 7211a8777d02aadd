"""Machines with steady rates, and a monitor that has watched them for a while."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from common.units import Hotkey, RoundId
from validator.health.evidence import LINKS, Evidence, Kind, Level, Sample
from validator.health.findings import Finding
from validator.health.labels import Label, Place
from validator.health.monitor import Judgement, Monitor

PROVIDERS, EACH = 6, 5
CALM_ROUNDS = 20
Share = Callable[[Kind, Hotkey], float]
"""What is left of a machine's rate."""


def nobody(kind: Kind, hotkey: Hotkey) -> float:
    """All is well."""
    return 1.0


def hotkeys(provider: int) -> frozenset[Hotkey]:
    """The machines of a provider."""
    return frozenset(Hotkey(f"p{provider}m{i}") for i in range(EACH))


def place(provider: int, coldkey: str, *declared: Label) -> Place:
    """A machine whose /24 the validator sees."""
    return Place(coldkey, (Label("subnet", f"10.{provider}.0.0/24", True), *declared))


def places() -> dict[Hotkey, Place]:
    """Every machine, each with a coldkey of its own."""
    return {h: place(p, f"owner of {h}") for p in range(PROVIDERS) for h in sorted(hotkeys(p))}


class World:
    """Rounds of a fleet: rates wobble by 5 % in a fixed pattern, so that nothing here is left to chance."""

    def __init__(self, where: Mapping[Hotkey, Place] | None = None) -> None:
        self.places = dict(places() if where is None else where)
        self.index = {hotkey: index for index, hotkey in enumerate(self.places)}
        self.monitor = Monitor()
        self.round = 0
        self.own = 1.0
        self.watches: list[Finding] = []
        self.verdicts: list[Finding] = []
        self.released: list[Finding] = []

    def calm(self, rounds: int = CALM_ROUNDS) -> World:
        """Let a past come together."""
        for _ in range(rounds):
            self.play()
        assert not self.verdicts, "nothing is wrong yet"
        return self

    def play(self, left: Share = nobody, probed: Share | None = None) -> Judgement:
        """One round; probes show the same as the rounds unless something else is said."""
        judgement = self._look(left)
        self.answer(judgement.probes, probed or left)
        self.round += 1
        return judgement

    def look(self, left: Share) -> Mapping[Kind, frozenset[Hotkey]]:
        """A round whose probes are not answered yet; what it asks for."""
        probes = self._look(left).probes
        self.round += 1
        return probes

    def answer(self, probes: Mapping[Kind, frozenset[Hotkey]], left: Share) -> None:
        """Give these."""
        results: dict[Kind, dict[Hotkey, Level]] = {}
        for kind, asked in probes.items():
            for hotkey in asked & self.places.keys():
                results.setdefault(kind, {})[hotkey] = Level(math.log(self.rate(kind, hotkey, left)), False)
        verdicts, released = self.monitor.probed(results)
        self.verdicts += verdicts
        self.released += released

    def _look(self, left: Share) -> Judgement:
        samples = {kind: {hotkey: (Sample(self.rate(kind, hotkey, left)),) for hotkey in self.places} for kind in Kind}
        own = {kind: (Sample(100.0 * self.own * self._wobble(3)),) for kind in LINKS}
        judgement = self.monitor.look(Evidence(RoundId(self.round), samples, own), self.places)
        self.watches += judgement.watches
        self.verdicts += judgement.verdicts
        self.released += judgement.released
        return judgement

    def until_verdict(self, left: Share, rounds: int = 12) -> int:
        """Rounds until the first verdict. Fails when there is none."""
        for count in range(1, rounds + 1):
            self.play(left)
            if self.verdicts:
                return count
        raise AssertionError(f"no verdict after {rounds} rounds")

    def rate(self, kind: Kind, hotkey: Hotkey, left: Share) -> float:
        """Of a machine in this round."""
        index = self.index[hotkey]
        return 100.0 * (1 + index % 3) * left(kind, hotkey) * self._wobble(index)

    def _wobble(self, place: int) -> float:
        return 1.0 + 0.05 * math.sin(7.0 * place + 3.1 * self.round)


def slowed(kind: Kind, whom: frozenset[Hotkey], share: float) -> Share:
    """These machines have so much left of one kind of rate."""
    return lambda one, hotkey: share if one is kind and hotkey in whom else 1.0
