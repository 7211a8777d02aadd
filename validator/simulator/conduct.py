"""What a simulated miner does about rounds: the real miner's policy, asked whenever something happened.

Facts are made as ``miner.survey`` makes them, moves are made at once: encoding takes no time here, and settling comes
with the revision. One upload is under way at a time. Invariant: nothing is decided here that ``miner.policy`` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from common.units import RoundId
from miner.deadlines import AHEAD_ROUNDS, DEFAULT_NOTICE_S, LEAST_NOTICE_S, Deadlines
from miner.policy import Facts, Made, Move, decide
from validator.simulator.errands import Errand
from validator.simulator.events import Timer
from validator.simulator.machines import Mode
from validator.simulator.work import Offer, Session

if TYPE_CHECKING:
    from validator.simulator.miner import Miner
    from validator.simulator.world import World

MOST_MOVES = 12
"""At one moment; more would be a policy that contradicts itself."""

LATER_S = 1e-3
"""A look for a drip comes so long after it is due: rounding must not make it come before."""


class Conduct:
    """One process's dealings with the leader."""

    def __init__(self, world: World, miner: Miner) -> None:
        notice_s = max(LEAST_NOTICE_S, world.settings.notice_s or DEFAULT_NOTICE_S)
        self.times = Deadlines.of(world.spec, notice_s)
        self.errand: Errand | None = None
        self.round: RoundId | None = None
        """Whose samples it takes: the round that it works for."""
        self._world = world
        self._miner = miner
        self._since_s = world.queue.now_s
        self._drain_s: float | None = None
        self._measured = False
        self._refused_at: tuple[Offer, int] | None = None
        self._timer: Timer | None = None

    @property
    def draining(self) -> bool:
        """It has been told to end."""
        return self._drain_s is not None

    def drain(self) -> None:
        """SIGTERM."""
        self._drain_s = self._world.queue.now_s
        self.look()

    def begin(self) -> None:
        """Training begins."""
        self._since_s = self._world.queue.now_s
        self.look()

    def end(self) -> None:
        """The process is gone."""
        if self.errand is not None:
            self.errand.cancel()

    def delivered(self, refused: bool) -> None:
        """The upload under way has come to its end."""
        if self.errand is not None:
            self._measured = True
            if refused:
                self._refused_at = (self.errand.offer, self._world.records.state.next_seq)
        self.errand = None
        if refused or self.draining or self._next() is not None or self.final() is None:
            self.look()  # else the round has what it gets, and only news can change anything

    def final(self) -> Offer | None:
        """The last word to the round that it works for."""
        newest = self._newest(self.round)
        return newest if newest is not None and newest.final else None

    def look(self) -> None:
        """Do what is to be done now."""
        miner = self._miner
        if miner.session is None or miner.machine.mode not in (Mode.TRAIN, Mode.IDLE):
            return
        life = miner.life
        for _ in range(MOST_MOVES):
            move, _reason = decide(self._facts(miner.session), self.times, self._world.spec.round.overlap)
            if not self._do(move) or life != miner.life:
                break
        else:
            self._world.violations.append(f"miner {miner.index} makes {MOST_MOVES} moves at one moment, last {move}")
        if life == miner.life:
            self._await_drip()

    def _do(self, move: Move) -> bool:
        """Make a move; whether to ask again at once."""
        miner = self._miner
        if move is Move.SYNC:  # asked again as soon as it is there
            miner.fetch_head()
            return False
        elif move is Move.RESTREAM:
            self.round = self._world.open_round
        elif move in (Move.DRIP, Move.FINAL):
            self._since_s = self._world.queue.now_s
            self.round = self._world.open_round
            assert self.round is not None
            miner.offer(self.round, final=move is Move.FINAL)
        elif move is Move.DELIVER:
            self._deliver()
            return not self._world.spec.round.overlap
        elif move is Move.RECALL:
            assert self.errand is not None
            self.errand.cancel()
            self.errand = None
        else:
            training = move in (Move.TRAIN, Move.BEGIN)
            miner.machine.enter(Mode.TRAIN if training else Mode.IDLE)
            return False
        return True

    def _deliver(self) -> None:
        offer = self._next()
        assert offer is not None
        self.errand = Errand(self._world, self._miner, offer)
        self.errand.begin()

    def _facts(self, session: Session) -> Facts:
        world, miner = self._world, self._miner
        state, now_s = world.records.state, world.queue.now_s
        opened, errand, steps = state.open_round, self.errand, miner.steps()
        newest = self._newest(opened.round if opened is not None else None)
        order, freeze_in_s = world.post.order(miner)
        waited_s = None if self._drain_s is None else now_s - self._drain_s
        return Facts(
            head=state.head,
            open_round=opened.round if opened is not None else None,
            open_base=opened.base_revision if opened is not None else None,
            frozen=opened is not None and opened.plan is not None,
            behind=False,
            order=order,
            freeze_in_s=freeze_in_s,
            idle=False,
            restart=False,
            ready=True,
            fetching=False,
            held=session.held,
            syncing=miner.fetching,
            settled=session.held,
            base=session.held,
            stream=self.round,
            steps=steps - session.settled,
            nominal_steps=world.spec.inner.steps_of(session.held),
            fresh_steps=steps - (session.settled if newest is None else newest.mark),
            sated=(steps - session.settled) * session.step_tokens > AHEAD_ROUNDS * world.spec.round.target_tokens,
            making=None,
            newest=_made(newest),
            since_s=now_s - self._since_s,
            upload_s=self._upload_s(),
            to_deliver=self._next() is not None,
            delivering=self._delivering(session),
            recall=errand is not None and self._unwanted(errand, session),
            left_s=None if errand is None else errand.left_s(),
            draining=waited_s is not None,
            hurry=waited_s is not None and waited_s >= self.times.hurry_s,
        )

    def _upload_s(self) -> float | None:
        """What sending a submission should take."""
        miner = self._miner
        if not self._measured or miner.session is None:
            return None
        return miner.machine.up.seconds_for(self._world.sizes.delta(miner.session.held)[0])

    def _newest(self, round_id: RoundId | None) -> Offer | None:
        """The latest submission for a round."""
        session = self._miner.session
        if session is None or not session.offers or session.offers[-1].round != round_id:
            return None
        return session.offers[-1]

    def _next(self) -> Offer | None:
        """What waits to be delivered: what a plan deferred, then the newest."""
        session = self._miner.session
        assert session is not None
        newest = self._newest(self._world.open_round)
        for offer in (session.pending, newest):
            if offer is not None and not offer.told and not self._was_refused(offer):
                return offer
        return None

    def _was_refused(self, offer: Offer) -> bool:
        """Whether it was, and the log has no news since."""
        return self._refused_at == (offer, self._world.records.state.next_seq)

    def _delivering(self, session: Session) -> Made | Literal["pending"] | None:
        if self.errand is None:
            return None
        return "pending" if self.errand.offer is session.pending else _made(self.errand.offer)

    def _unwanted(self, errand: Errand, session: Session) -> bool:
        offer, opened = errand.offer, self._world.open_round
        if offer is session.pending:
            return False
        if opened is not None and offer in session.offers and offer.round < opened:
            return not errand.mostly_sent  # of an aborted round: as ``miner.survey`` has it
        return not session.offers or session.offers[-1] is not offer

    def _await_drip(self) -> None:
        """Look again when a drip is due. When one is due but not possible, what makes it possible looks by itself."""
        every_s = self.times.drip_every_s(self._upload_s())
        if every_s is None:
            return
        due_s = self._since_s + every_s + LATER_S
        if due_s <= self._world.queue.now_s or (self._timer is not None and self._timer.at_s == due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._miner.at(due_s, self.look)


def _made(offer: Offer | None) -> Made | None:
    if offer is None:
        return None
    return "final" if offer.final else "drip"
