"""The way of one submission: announce, upload, tell the leader. Repeated from where it stood until it is there.

Invariant: an errand ends told, refused for good, or with its process; each step may be repeated without harm, since
the same manifest has one receipt and the same bytes one key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from common import timeouts
from common.errors import Rejected
from common.records import StoredSubmission
from validator.checks import Finding
from validator.simulator.links import Transfer
from validator.simulator.work import Offer
from validator.submissions import NOT_THERE

if TYPE_CHECKING:
    from validator.simulator.leader import Leader
    from validator.simulator.miner import Miner
    from validator.simulator.world import World

HELD_LOOK_S = 1.0
"""Pause between two looks of an upload that is held back."""


class Errand:
    """One submission on its way."""

    def __init__(self, world: World, miner: Miner, offer: Offer) -> None:
        self.offer = offer
        self.ended = False
        self._world = world
        self._miner = miner
        self._transfer: Transfer | None = None
        self._held = miner.misdeeds.take_for("late", offer.final)

    def begin(self) -> None:
        """Set off; it may end at once."""
        if "die_before_upload" in self._miner.misdeeds.armed:
            self._world.kill(self._miner, "die_before_upload")
        else:
            self._announce()

    def left_s(self) -> float | None:
        """Until the last byte is there, as far as is known."""
        transfer, up = self._transfer, self._miner.machine.up
        return None if transfer is None else up.seconds_for(up.left_bytes(transfer))

    @property
    def mostly_sent(self) -> bool:
        """Whether at least half of the bytes are there."""
        transfer = self._transfer
        return transfer is not None and 2 * self._miner.machine.up.left_bytes(transfer) <= transfer.size_bytes

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self.ended = True
        self._miner.machine.up.cancel(self._transfer)

    def _announce(self) -> None:
        self._ask(lambda: self._leader().announce(self.offer), self._receipted)

    def _leader(self) -> Leader:
        leader = self._world.post.leader_of(self._miner)
        assert leader is not None, "a request that nobody hears is not served"
        return leader

    def _ask(self, serve: Callable[[], object], then: Callable[[object], None]) -> None:
        if "duplicate" in self._miner.misdeeds.armed:
            once = serve

            def serve() -> object:
                once()
                return once()

        self._world.post.ask_leader(self._miner, serve, self._guarded(then), self._guarded(self._refused))

    def _guarded(self, then: Callable[[object], None]) -> Callable[[object], None]:
        return lambda reply: None if self.ended else then(reply)

    def _refused(self, refusal: object) -> None:
        """For now: the next round may take it, if a plan has deferred it. The miner asks again by itself."""
        assert isinstance(refusal, Rejected)
        if refusal.code == "not_announced":  # to this leader: the one before it is gone
            self._miner.later(timeouts.RETRY_FIRST_S, lambda: None if self.ended else self._announce())
            return
        self._end(refused=True)

    def _receipted(self, stored: object) -> None:
        assert isinstance(stored, StoredSubmission)
        self.offer.stored = stored
        if self._held is not None and self._world.next_round <= self.offer.round + self._held.size:
            self._miner.later(HELD_LOOK_S, lambda: None if self.ended else self._receipted(stored))
            return
        if self.offer.there:  # put while another led
            self._confirm()
        else:
            self._upload()

    def _confirm(self) -> None:
        self._ask(lambda: self._leader().complete(self.offer), self._looked_at)

    def _upload(self) -> None:
        miner = self._miner
        size_bytes = float(self.offer.size_bytes)
        self._transfer = miner.machine.up.send(size_bytes, self._sent)
        if "die_during_upload" in miner.misdeeds.armed:
            half_s = miner.machine.up.seconds_for(size_bytes) / 2
            miner.later(half_s, lambda: self._kill_now("die_during_upload"))

    def _kill_now(self, kind: str) -> None:
        if not self.ended and kind in self._miner.misdeeds.armed:
            self._world.kill(self._miner, kind)

    def _sent(self) -> None:
        if self.ended:
            return
        if self._world.storage.healthy:
            self._put(None)
        else:
            self._world.post.ask_storage(self._miner, self._guarded(self._put))

    def _put(self, _: object) -> None:
        """The last byte is there and acknowledged."""
        misdeeds = self._miner.misdeeds
        if misdeeds.take("corrupt"):  # the storage compares with the hash that the URL is bound to, and refuses
            self._again()
            return
        if misdeeds.take("missing") is None:
            self._world.records.put(self.offer)
            self.offer.there = True
        if "die_after_upload" in misdeeds.armed:
            self._world.kill(self._miner, "die_after_upload")
            return
        self._confirm()

    def _looked_at(self, finding: object) -> None:
        assert isinstance(finding, Finding)
        if finding.code in NOT_THERE:
            self._again()
            return
        self.offer.told = True
        self._end(refused=False)

    def _end(self, refused: bool) -> None:
        self.ended = True
        self._miner.delivered(refused)

    def _again(self) -> None:
        self._miner.later(timeouts.RETRY_FIRST_S, lambda: None if self.ended else self._upload())
