"""The leader's side of the butterfly: deals the partitions of a plan to its miners, takes their means in, and judges.

Invariants: nothing here can lose a round or change what it commits: whatever the owners, or the chain that the deal's
chance comes from, do not give by a deadline, the leader computes. Only a round's first plan is dealt; when its merge
does harm, the leader goes on alone. A new leader deals anew: it trusts nothing that another one has counted.

The owners of a plan follow from its hash, a final block after it and the candidates, so that no miner chooses them.
This process could: it takes the block after the one at which it asks the chain, and the candidates are whom it has
heard. What protects a run from that is no draw but the followers, who merge every revision again
(``common/merge/butterfly``). What is computed again is drawn with this process's own fresh chance when the owners can't
change their copies any more: the seed of the deal is known to owners before they hand in, and who knows what will be
checked lies elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from loguru import logger

from common import keys, timeouts
from common.blocking import in_thread, leave
from common.chain.port import ChainPort
from common.errors import Rejected, RemoteError, Retryable
from common.identity import SignedRecord
from common.merge.butterfly import placement_seed
from common.reductions import Copy, Reduction, open_reduction, require_signer
from common.runlog.entries import RoundFrozen
from common.store.port import MAX_PRESIGN_S
from common.units import Hotkey, Sha256, sha256_hex
from common.wire import MeanDuty, MeanTarget, ReduceView, ReductionReply, UploadTarget
from validator.api.security import Caller
from validator.attending import Attending
from validator.audits.convictions import Accused
from validator.board import Board
from validator.dealing import candidates, proofs_of, read_bytes
from validator.lies import Lies
from validator.means import Handed, Means
from validator.outages import only_facts
from validator.owners import accepted_hotkeys, deal_of, handed_in, unheard_senders
from validator.reducing import Asked, Reducing, may_reduce
from validator.round.deadlines import REDUCE_SHARE, seconds_left
from validator.rounds import Round


class Butterfly:
    """The reduction by miners, for one process. The event loop owns it."""

    def __init__(self, board: Board, chain: ChainPort, entropy: Callable[[int], bytes], lies: Lies) -> None:
        """``entropy`` draws what is computed again."""
        self._board = board
        self._lies = lies
        self._chain = chain
        self._entropy = entropy
        self._reducing: Reducing | None = None
        self._dealing: asyncio.Task[None] | None = None
        self._after: int | None = None
        """The block after the plan."""
        self._asked_s = -math.inf
        self._trouble = ""
        self._attending = Attending(0.0)
        self._hands: dict[Hotkey, asyncio.Lock] = {}
        """Of each owner, so that it hands in one word at a time."""

    async def awaited(self, current: Round) -> str:
        """What the merge of the newest plan waits for; empty when it need not wait, or not any longer."""
        plan, plan_sha256 = current.opened.plan, current.opened.plan_sha256
        if plan is None or plan_sha256 is None or not may_reduce(current.opened):
            return ""
        if self._reducing is None or self._reducing.plan_sha256 != plan_sha256:
            now_s = self._board.now_s()
            left_s = seconds_left(current.state, now_s, current.policy)
            await self._begin(Reducing(plan.round, plan_sha256, now_s, left_s))
        reducing = self._reducing
        assert reducing is not None
        reducing.follow(current, current.state.held_s)
        if not reducing.waits(self._board.now_s()):
            return ""
        if reducing.deal is None and not candidates(self._board, current, plan):
            self._trouble = f" (nobody accepted lives and may have duties{self._barred(plan)})"
            return ""
        await self._look(reducing, current, plan)
        if reducing.deal is None:
            return f"dealing its partitions to miners{self._trouble}"
        now_s, members = self._board.now_s(), self._board.members
        missing = reducing.missing(lambda owner: members.lives(owner, now_s))
        return f"waiting for {missing} means of its partitions from miners" if missing else ""

    def close(self, current: Round) -> Handed | None:
        """What the owners have handed in; None when there is nothing, and the leader merges alone."""
        reducing = self._reducing
        if reducing is None or not reducing.reduces(current.opened):
            return None
        first, reducing.closed = not reducing.closed, True
        if reducing.deal is not None and first:
            self._settle(reducing, current)
        elif first:
            round_id, told = reducing.round, self._trouble
            logger.warning("round {}: nobody was given partitions in time{}; merging alone", round_id, told)
        return handed_in(self._board.spec, reducing, current.opened, lambda: self._entropy(32))

    def judge(self, current: Round, means: Means) -> None:
        """Name who handed in what is wrong, and who was late."""
        run, opened = self._board.journal.state, current.opened
        assert opened.frozen_seq is not None, "a plan was merged"
        assert opened.plan_sha256 is not None, "a plan was merged"
        leader = run.led_at(opened.frozen_seq)
        assert leader is not None, "whoever writes a plan leads"
        plan = Accused(leader, current.state.round, opened.frozen_seq, opened.plan_sha256)
        for wrong in means.wrong:
            current.lies.setdefault(wrong.hotkey, wrong.told)
            self._lies.note(plan, wrong)
        taken = 0 if means.reduced is None else sum(len(part.partitions) for part in means.reduced.parts)
        facts = {"round": int(current.state.round), "taken": taken, "checked": means.checked}
        logger.bind(event="reduced", **facts).info(
            "round {}: {}; late: {}", current.state.round, means.told, ", ".join(sorted(means.late)) or "nobody"
        )

    def _settle(self, reducing: Reducing, current: Round) -> None:
        """Bar who lets rounds wait from the duties of the next ones.

        When the storage was away meanwhile, this process slept, or somebody else may have led, nobody is: owners could
        not be told, put or hand in then, and nothing here tells whom that kept from what.
        """
        reducing.follow(current, current.state.held_s)
        if not reducing.undisturbed:
            logger.info("round {}: no owner is judged: time passed that does not count", reducing.round)
            return
        now_s, members = self._board.now_s(), self._board.members
        owners = self._attending.owners(reducing, lambda owner: members.lives(owner, now_s))
        allowed_s, usual_s = self._attending.allowed_s(reducing), REDUCE_SHARE * current.policy.finish_deadline_s
        spared = self._board.health.spared
        if why := members.bars.settle(reducing.round, owners, allowed_s, usual_s, spared):
            logger.bind(event="duties", round=int(reducing.round)).info("round {}: {}", reducing.round, why)

    # What miners see and send.

    def view(self, hotkey: Hotkey) -> ReduceView | None:
        """A miner's duties, for the reply to its heartbeat."""
        reducing = self._open()
        asked = reducing.asked(hotkey, self._board.now_s()) if reducing is not None else None
        if reducing is None or asked is None:
            return None
        self._attending.told(hotkey, self._board.now_s())
        return view_of(reducing, asked)

    async def hand_in(self, caller: Caller, value: dict[str, object]) -> ReductionReply:
        """An owner's word: where its means go, or that all are there and count. Raises ``Rejected``, ``Retryable``."""
        word, record = open_reduction(value, self._board.spec.run)  # type: ignore[arg-type]  # total on Any
        require_signer(word, record)
        if word.signer != caller.hotkey:
            raise Rejected("wrong_hotkey", "the reduction is signed by another hotkey than the request")
        with self._attending.serving(word.signer):
            reducing = self._led()
        reducing.announce(word)
        self._note_read(reducing, word)
        # Only a word that brings something is kept, one after the other: the same one signed anew is other bytes, and
        # nobody's words in the bucket are more than its duties.
        async with self._hands.setdefault(word.signer, asyncio.Lock()):
            if not reducing.brings(word):
                return ReductionReply(uploads=())
            expires_s = min(max(1, math.ceil(reducing.deadline_s - self._board.now_s())), MAX_PRESIGN_S)
            with self._attending.serving(word.signer):
                targets = await in_thread(lambda: self._targets(word, expires_s))
                if not targets:
                    reducing.take(word, await in_thread(lambda: self._keep(word, record)))
            if not reducing.due(word.signer):
                self._attending.done(word.signer, self._board.now_s())
            return ReductionReply(uploads=targets)

    def _note_read(self, reducing: Reducing, word: Reduction) -> None:
        """How fast an owner has read what its first means are made of."""
        current, took_s = self._board.round, self._attending.read_s(word.signer, self._board.now_s())
        if took_s is None or not reducing.undisturbed or current is None or current.opened.plan is None:
            return
        places = [(copy.shard, copy.partition) for copy in word.copies]
        size_bytes = read_bytes(self._board.spec, self._board.counts(), current.opened.plan, places)
        self._board.health.vitals.read(word.signer, size_bytes, took_s)

    def _open(self) -> Reducing | None:
        """What is reduced for the round that is open: one that its owner has ended takes nothing more."""
        current, reducing = self._board.round, self._reducing
        if reducing is None or current is None or current.opened.plan_sha256 != reducing.plan_sha256:
            return None
        reducing.follow(current, current.state.held_s)
        return reducing

    def _led(self) -> Reducing:
        leadership = self._board.leadership
        if not leadership.leading:
            raise Rejected("not_leader", f"the leader is {self._board.journal.state.leader or 'not known yet'}")
        if not leadership.sure():
            raise Retryable("the lease could not be renewed in time; another may lead by now", timeouts.LEASE_RENEW_S)
        reducing = self._open()
        if reducing is None:
            raise Rejected("round_closed", "no plan is being reduced now")
        return reducing

    def _targets(self, word: Reduction, expires_s: int) -> tuple[MeanTarget, ...]:
        """In a thread: where to put what is not there."""
        with only_facts():
            return tuple(self._target(word, copy, expires_s) for copy in word.copies if not self._is_there(word, copy))

    def _is_there(self, word: Reduction, copy: Copy) -> bool:
        info = self._board.store.head(word.key_of(copy))
        return info is not None and info.size_bytes == copy.mean.size_bytes

    def _target(self, word: Reduction, copy: Copy, expires_s: int) -> MeanTarget:
        put = self._board.store.presign_put(
            word.key_of(copy), size_bytes=copy.mean.size_bytes, sha256=copy.mean.sha256, expires_s=expires_s
        )
        upload = UploadTarget(url=put.url, headers=dict(put.headers), expires_in_s=float(expires_s))
        return MeanTarget(shard=copy.shard, partition=copy.partition, upload=upload)

    def _keep(self, word: Reduction, record: SignedRecord) -> Sha256:
        """In a thread: the signed word stays in the bucket, as evidence; the hash of its object."""
        body = record.encode()
        sha256 = sha256_hex(body)
        with only_facts():
            self._board.store.put(keys.reduction_key(word.run, word.round, word.signer, sha256), body)
        return sha256

    # The deal.

    async def stop(self) -> None:
        """Leave a deal that is under way, at the end of the process or when another plan is to be dealt.

        One whose round is over ends by itself: a chain call cut off would leave its dead connection to the next one.
        """
        dealing, self._dealing = self._dealing, None
        await leave(dealing)

    async def _begin(self, reducing: Reducing) -> None:
        await self.stop()
        self._reducing, self._after, self._trouble = reducing, None, ""
        self._asked_s, self._hands = -math.inf, {}

    async def _look(self, reducing: Reducing, current: Round, plan: RoundFrozen) -> None:
        """Go on with the deal, beside the driver's looks: the chain and the storage may take their time."""
        if reducing.deal is not None:
            return
        if self._dealing is None:
            if self._board.now_s() - self._asked_s < timeouts.BLOCK_LOOK_S:
                return
            self._asked_s = self._board.now_s()
            self._dealing = asyncio.create_task(self._deal(reducing, current, plan), name="deal")
        await asyncio.wait({self._dealing}, timeout=timeouts.LEADER_LOOK_S)
        if self._dealing.done():
            done, self._dealing = self._dealing, None
            self._note(done)

    def _note(self, done: asyncio.Task[None]) -> None:
        try:
            done.result()
        except RemoteError as fault:
            if self._trouble != f" ({fault})":
                logger.warning("the partitions can't be dealt yet: {}", fault)
            self._trouble = f" ({fault})"

    async def _deal(self, reducing: Reducing, current: Round, plan: RoundFrozen) -> None:
        """One try; nothing happens while the block is not final, or once nobody waits for the deal any more."""
        if self._after is None:
            self._after = await self._chain.block() + 1
        block_hash = await self._chain.finalized_hash(self._after) if self._wanted(reducing, current) else None
        if not self._wanted(reducing, current):
            return
        if block_hash is None:
            self._trouble = f" (block {self._after} is not final yet)"
            return
        if unheard := unheard_senders(self._board.members, plan, self._board.now_s()):
            self._trouble = f" ({unheard} of their senders have not been heard of by this leader)"
            return
        proofs = await in_thread(lambda: proofs_of(self._board, current, plan))
        seed = placement_seed(reducing.plan_sha256, block_hash)
        deal = deal_of(self._board.spec, self._board.counts(), seed, candidates(self._board, current, plan), proofs)
        if not self._wanted(reducing, current):
            return
        reducing.follow(current, current.state.held_s)
        reducing.begin(deal, self._board.now_s())
        self._attending = Attending(self._board.now_s())
        logger.info(
            "round {}: {} partitions go to {} miners, by block {}{}",
            plan.round,
            len(deal.duties),
            len(reducing.owners),
            self._after,
            self._barred(plan),
        )

    def _wanted(self, reducing: Reducing, current: Round) -> bool:
        """Whether the leader still waits for a deal."""
        return not reducing.closed and self._board.round is current

    def _barred(self, plan: RoundFrozen) -> str:
        """Who of those accepted gets no duties, and why."""
        accepted, bars = accepted_hotkeys(plan), self._board.members.bars
        return "".join(f"; {told}" for told in bars.without_duties(plan.round, accepted))


def view_of(reducing: Reducing, asked: Asked) -> ReduceView:
    """The same as a message."""
    duties = tuple(
        MeanDuty(shard=shard, partition=partition, inputs_sha256=inputs) for (shard, partition), inputs in asked.duties
    )
    return ReduceView(
        round=reducing.round, plan_sha256=reducing.plan_sha256, duties=duties, seconds_left=asked.seconds_left
    )
