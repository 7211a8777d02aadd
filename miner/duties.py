"""What a miner still has to reduce of a plan: not what the leader counts already, and not from scratch what is held.

A reply to a heartbeat may have been made before the leader counted a hand-in, and ask for it once more. It is believed
when its heartbeat was sent after the leader had said that all is there, or when another process leads: then the duty
is done again. Means that were made for the present plan are held meanwhile, the newest, within a bound, and handed in
again without a byte being read. The event loop owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from common.merge.partition import PartitionMean
from common.units import ShardId
from common.wire import MeanDuty, ReduceView

MOST_HELD_BYTES = 64 << 20
"""Of means at a time, unless one alone is larger."""
Place = tuple[ShardId, int]


@dataclass(frozen=True)
class Asked:
    """What the reply to a heartbeat asks for."""

    view: ReduceView
    instance: str
    """The leading process."""
    beat: int
    """Number of the heartbeat."""


def place_of(duty: MeanDuty) -> Place:
    """Shard and partition."""
    return ShardId(duty.shard), duty.partition


class Duties:
    """Those of one plan at a time, as one leading process sees them."""

    def __init__(self, sent: Callable[[], int]) -> None:
        """``sent`` is the number of the newest heartbeat that was made."""
        self._sent = sent
        self._plan = ""
        self._instance = ""
        self._counted: dict[Place, int] = {}
        """What the leader has said to be there, and the newest heartbeat before it was heard."""
        self._held: dict[Place, PartitionMean] = {}
        """Oldest first."""

    def next(self, asked: Asked, size_of: Callable[[MeanDuty], int]) -> list[MeanDuty]:
        """What to hand in next of what is asked for, and still due: what is held first, as much as may be held.

        ``size_of`` gives a mean's bytes. Means of earlier hand-ins that do not fit beside these are let go.
        """
        self._turn_to(asked)
        due = [duty for duty in asked.view.duties if asked.beat > self._counted.get(place_of(duty), 0)]
        sizes: dict[Place, int] = {}
        chosen: list[MeanDuty] = []
        for duty in sorted(due, key=lambda duty: self.held(duty) is None):
            size = size_of(duty)
            if chosen and sum(sizes.values()) + size > MOST_HELD_BYTES:
                break
            chosen.append(duty)
            sizes[place_of(duty)] = size
        self._make_room(sizes)
        return chosen

    def count(self, asked: Asked, places: Iterable[Place]) -> None:
        """The leader has said that all these are there."""
        if (asked.view.plan_sha256, asked.instance) == (self._plan, self._instance):
            self._counted |= dict.fromkeys(places, self._sent())

    def held(self, duty: MeanDuty) -> PartitionMean | None:
        """The mean that was made of what the duty is to be made of; None when it is not there any more."""
        mean = self._held.get(place_of(duty))
        return mean if mean is not None and mean.inputs_sha256 == duty.inputs_sha256 else None

    def hold(self, asked: Asked, means: Mapping[Place, PartitionMean]) -> None:
        """Keep what was made, as long as the plan is the present one."""
        if asked.view.plan_sha256 == self._plan:
            for place, mean in means.items():
                self._held.pop(place, None)
                self._held[place] = mean

    def end(self, plan_sha256: str | None) -> None:
        """The open round's plan is this one, or there is none: what belongs to another is let go."""
        if plan_sha256 != self._plan:
            self._plan, self._instance, self._counted, self._held = "", "", {}, {}

    def _turn_to(self, asked: Asked) -> None:
        """To another plan, or to another process that leads: what one has counted, the next does not know."""
        if asked.view.plan_sha256 != self._plan:
            self._held = {}
        if (asked.view.plan_sha256, asked.instance) != (self._plan, self._instance):
            self._plan, self._instance, self._counted = asked.view.plan_sha256, asked.instance, {}

    def _make_room(self, sizes: Mapping[Place, int]) -> None:
        others = [place for place in self._held if place not in sizes]
        total = sum(sizes.values()) + sum(self._held[place].values.nbytes for place in others)
        for place in others:
            if total <= MOST_HELD_BYTES:
                break
            total -= self._held.pop(place).values.nbytes
