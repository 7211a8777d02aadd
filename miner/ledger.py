"""What a miner owes and is owed: the residual, the submission under way, and work saved at a stop, each also on disk.

Invariants: the outcome of a round enters the residual exactly once, whenever the process is killed; a submission is
on disk before its first byte is sent. The event loop owns it; only the writing itself happens in a thread.
"""

from __future__ import annotations

from loguru import logger

from common.blocking import in_thread
from common.merge.feedback import Feedback, Settled
from common.model.layout import Vector
from common.spec import RunSpec
from common.units import RoundId
from miner.adamw import OptimizerState
from miner.delta import Submission, settle, unsent
from miner.follow import LogView
from miner.state import NO_ROUND, Memory, StateFolder
from miner.work import WorkDone


class Ledger:
    """Memory, pending submission and carried work of one miner in one run."""

    def __init__(
        self, spec: RunSpec, folder: StateFolder, memory: Memory, pending: Submission | None, carried: WorkDone | None
    ) -> None:
        self.memory = memory
        self.pending = pending
        """Handed in, or about to be, and not settled."""
        self.carried = carried
        """Work of an interrupted round that no trainer holds; its ``local`` is ``local − base``."""
        self._spec = spec
        self._folder = folder

    @classmethod
    def open(cls, spec: RunSpec, folder: StateFolder, count: int) -> Ledger:
        """What the disk holds, or a fresh ledger for vectors of ``count`` values. Blocks."""
        memory = folder.load_memory() or fresh_memory(count)
        pending, carried = folder.load_pending(), folder.load_progress()
        if pending is not None and pending.round <= memory.settled_round:
            pending = None
        if carried is not None and (carried.round <= memory.settled_round or pending is not None):
            carried = None  # what is pending was made of it
        found = pending or carried
        if found is not None:
            logger.info("found unsettled work of round {} on disk", found.round)
        return cls(spec, folder, memory, pending, carried)

    async def hand_in(self, sent: Submission) -> None:
        """Keep a submission until its round ends."""
        await in_thread(lambda: self._folder.save_pending(sent))
        await in_thread(self._folder.drop_progress)
        self.pending, self.carried = sent, None

    async def interrupt(self, done: WorkDone, base: Vector) -> None:
        """Keep the work of a round that this process will not end."""
        moved = WorkDone(**{**done.__dict__, "local": done.local - base})
        await in_thread(lambda: self._folder.save_progress(moved))
        self.carried = moved

    def taken_up(self) -> None:
        """A trainer goes on with the carried work; the disk keeps its copy until the round is settled."""
        self.carried = None

    async def settle(
        self, view: LogView, round_id: RoundId, moved: Vector | None, optimizer: OptimizerState | None
    ) -> Settled:
        """Put the outcome of a round that ended into the memory, on disk first.

        ``moved`` is ``local − base`` of a round in which nothing was handed in, ``optimizer`` the trainer's state.
        """
        settled = self._outcome(view, round_id, moved)
        memory = Memory(settled.feedback, optimizer or self.memory.optimizer, round_id)
        await in_thread(lambda: self._folder.save_memory(memory))
        await in_thread(self._folder.drop_round)
        self.memory, self.pending, self.carried = memory, None, None
        return settled

    def _outcome(self, view: LogView, round_id: RoundId, moved: Vector | None) -> Settled:
        feedback = self.memory.feedback
        if self.pending is not None and self.pending.round == round_id:
            return settle(self._spec, feedback, self.pending, view.planned.get(round_id), view.committed(round_id))
        if moved is None and self.carried is not None:
            moved = self.carried.local
        if moved is None:
            return Settled(feedback, 0.0, 0.0, "no work was done")
        return unsent(self._spec, feedback, moved)


def fresh_memory(count: int) -> Memory:
    """At the start of a run."""
    zeros = Feedback.empty(count)
    return Memory(zeros, OptimizerState(zeros.residual.copy(), zeros.residual.copy(), 0), NO_ROUND)
