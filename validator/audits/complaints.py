"""POST /v1/complaints: a miner shows a receipt that the plan of its round does not honour.

Invariants: what convicts is the leader's own signature and the log, never the miner's word; who complains costs two
signature checks and no read of the storage, and may do so rarely; nothing is kept of a complaint that is not proved.
"""

from __future__ import annotations

from common.convictions import left_out, submission_of
from common.errors import Rejected, Retryable
from common.runlog.leftout import judge
from common.timeouts import FOLLOWER_LOOK_S
from common.wire import ComplaintReply, ComplaintRequest
from validator.api.limits import Limit, RateLimiter
from validator.api.security import Caller, RateLimited
from validator.audits.convictions import Accused, Convictions
from validator.audits.plans import Plans
from validator.board import Board

PER_COMPLAINER = Limit(rate_per_s=0.1, burst=4.0)
"""A round has one plan, so that an honest miner has at most one complaint a round."""


class Complaints:
    """The desk of one validator."""

    def __init__(self, board: Board, plans: Plans, convictions: Convictions) -> None:
        self._board = board
        self._plans = plans
        self._convictions = convictions
        self._limits = RateLimiter(PER_COMPLAINER)

    async def hear(self, caller: Caller, request: ComplaintRequest) -> ComplaintReply:
        """Judge a complaint. Raises ``RateLimited``; ``Rejected`` (``wrong_hotkey``, ``own_plan``, ``round_too_old``,
        the decoders' codes for what is no receipted manifest); ``Retryable`` for a plan that is not read here yet."""
        wait_s = self._limits.take(caller.hotkey, self._board.now_s())
        if wait_s > 0:
            raise RateLimited("miner's complaints", wait_s)
        submission = submission_of(request.manifest, request.receipt, self._board.spec.run)
        receipt = submission.receipt
        if receipt.hotkey != caller.hotkey:
            raise Rejected("wrong_hotkey", "the receipt is another miner's")
        if receipt.signer == self._board.signer.hotkey:
            raise Rejected("own_plan", "the receipt is this validator's own: complain to another one")
        entry = self._plans.find(receipt.round)
        if entry is None and receipt.round < self._plans.oldest:
            raise Rejected("round_too_old", f"plans of rounds before {self._plans.oldest} are not looked at any more")
        if entry is None:
            raise Retryable(f"the log, as read here, has no plan of round {receipt.round} yet", FOLLOWER_LOOK_S)
        judged = judge(submission, entry)
        if judged.guilty:
            accused = Accused(entry.signer, receipt.round, entry.seq, entry.slot_sha256)
            self._convictions.note(accused, judged.why, left_out(submission))
        return ComplaintReply(convicted=judged.guilty, reason=judged.why[:300])
