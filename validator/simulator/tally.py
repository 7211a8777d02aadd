"""Where a miner's tokens went. Invariant: trained = merged + lost + unfinished, to the token."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.runlog.rules import counted_tokens
from common.spec import RunSpec
from miner.settle import NOT_JUDGED
from validator.simulator.work import Fate

CAUSES = ("boot", "sync", "death", "late", "idle", "rejected")


@dataclass
class Tally:
    """One miner's."""

    step_tokens: int = 0
    trained_steps: int = 0
    """Of processes that have ended; the present one's are added at the end."""
    partial_tokens: float = 0.0
    """Of steps that were under way when a process died."""
    merged: int = 0
    """Late tokens by their weight."""
    unfinished: int = 0
    """Trained, and not decided on when the simulation ended."""
    under_way: float = 0.0
    """Of the step that was under way at the end."""
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("death", "late", "rejected"), 0))

    @property
    def known(self) -> int:
        """All tokens that are booked."""
        return self.merged + sum(self.lost.values()) + self.unfinished

    def lose(self, cause: str, steps: int) -> None:
        """Steps that nobody will ever merge."""
        self.lost[cause] += steps * self.step_tokens

    def settle(self, fate: Fate, spec: RunSpec, dead: bool = False) -> None:
        """Book what a plan said of a submission. A deferred one is not decided yet; of the ``dead`` nothing comes back.

        A submission is rejected for good: its tokens can't be claimed again, although its mass may come back.
        """
        offer, member = fate.offer, fate.member
        if member is not None and member.decision == "deferred":
            return
        if member is not None and member.decision == "accepted":
            base = offer.base if not fate.late else type(offer.base)(offer.base + 1)
            counted = counted_tokens(spec, base, member)
            self.merged += counted
            self.lost["late"] += member.tokens - counted
            self.lost["rejected"] += offer.tokens - member.tokens
        elif member is None or member.code in NOT_JUDGED:
            self.lost["death" if dead else "late"] += offer.tokens
        else:
            self.lost["rejected"] += offer.tokens
