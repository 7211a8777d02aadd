"""One miner in virtual time: production's trainer, continuous work, sample stream, codec and error feedback."""

from __future__ import annotations

from dataclasses import dataclass

from common.codec.container import decode, encode
from common.codec.params import F32, delta_params
from common.data.dataset import Dataset
from common.data.stream import SampleStream
from common.merge import account as books
from common.merge.account import Account, Merged, Pending
from common.model.layout import Vector, weights_hash
from common.spec import RunSpec
from common.units import Hotkey, Revision, RoundId, Sha256, sha256_hex
from miner.delta import REJECTED_CAP
from miner.trainer import Trainer
from miner.work import Base, Mark, RoundWork, Stream


@dataclass(frozen=True)
class Head:
    """The newest revision, and the round that is open on it."""

    weights: Vector
    revision: Revision
    round: RoundId

    @property
    def base(self) -> Base:
        return Base(self.revision, weights_hash(self.weights), self.weights)


@dataclass(frozen=True)
class Submission:
    """What was sent at a mark, and what is needed to settle it."""

    hotkey: Hotkey
    round: RoundId
    mark: Mark
    data: bytes
    target: F32
    sent: F32
    ready_at: int
    """Tick at which its bytes are all there."""

    @property
    def base(self) -> Revision:
        return self.mark.base.revision

    @property
    def tokens(self) -> int:
        return self.mark.work.tokens

    @property
    def sha256(self) -> Sha256:
        return sha256_hex(self.data)

    @property
    def cap_norm(self) -> float:
        """What the residual keeps at most if it is rejected, as a miner has it."""
        return REJECTED_CAP * books.norm(self.mark.work.moved)


class Machine:
    """A miner that has just joined on ``head``, with fresh moments and nothing in its residual."""

    def __init__(self, hotkey: Hotkey, spec: RunSpec, dataset: Dataset, trainer: Trainer, head: Head) -> None:
        self.hotkey, self.speed = hotkey, 1.0
        self._spec, self._dataset = spec, dataset
        self._work = RoundWork(trainer, spec.inner)
        self._account = Account.empty(len(head.weights))
        self._progress = 0.0
        self._round = head.round
        self._work.begin(head.base, self._stream(head))

    @property
    def tokens(self) -> int:
        """Of the work since the last settled mark."""
        return self._work.progress.work_tokens

    def pass_tick(self) -> int:
        """Train for one tick; the tokens that were trained on."""
        self._progress += self.speed
        taken = int(self._progress)
        self._progress -= taken
        return sum(self._work.step().tokens for _ in range(taken))

    def submit(self, ready_at: int) -> Submission | None:
        """A cumulative delta of everything since the last settled mark; None when there is nothing."""
        if self.tokens == 0:
            return None
        mark = self._work.mark()
        target = books.wanted(self._account, mark.work.moved, self._spec.codec.feedback)
        params = delta_params(self._spec.codec, mark.base.revision)
        data = encode(target, params)
        return Submission(
            self.hotkey, self._round, mark, data, target, decode(data, expect=params, count=len(target)), ready_at
        )

    def settle(self, named: Submission | None, terms: Merged | None, deferred: Submission | None, head: Head) -> None:
        """A plan became ``head``. It named ``named``, accepted on ``terms`` or rejected; or deferred ``deferred``."""
        beta, account, settled = self._spec.codec.feedback, self._account, named or deferred
        if named is not None and terms is not None:
            self._account = books.accepted(account, named.target, named.sent, terms, beta).account
        elif named is not None:
            self._account = books.rejected(account, named.target, named.cap_norm, beta).account
        elif deferred is not None:
            self._account = books.deferred(account, _pending(deferred), beta).account
        self._work.rebase(head.base, settled.mark.work if settled is not None else None)
        self._work.restream(self._stream(head))
        self._round = head.round

    def settle_late(self, terms: Merged | None) -> None:
        """The same plan accepted what was pending, or rejected it."""
        late = books.pending_rejected(self._account) if terms is None else books.pending_accepted(self._account, terms)
        self._account = late.account

    def _stream(self, head: Head) -> Stream:
        seq_len = self._spec.data.seq_len
        samples = SampleStream(self._dataset, head.base.sha256, head.round, self.hotkey, seq_len)
        return Stream(head.round, head.revision, samples)


def _pending(late: Submission) -> Pending:
    return Pending(late.round, late.base, late.sha256, late.target, late.sent, late.cap_norm)
