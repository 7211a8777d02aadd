"""Probes on the wire: what ``Probes`` decides is put, signed, ordered, checked and timed here, by the leader alone.

The time of a transfer runs on this process's monotonic clock, from the answer to the heartbeat that orders it until the
miner's own request arrives; what is done before and after, preparing and checking, does not count. What the leader
could not check itself, or what lies in a time in which it slept, the storage did not answer or the run moved, tells
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from loguru import logger

from common import keys, timeouts
from common.blocking import in_thread, leave
from common.errors import BrigadeError, Rejected
from common.probes import NONCE_BYTES, downlink_proof, uplink_bytes
from common.store.port import ObjectMissing, ObjectStore
from common.units import Hotkey, Sha256, sha256_hex
from common.wire import ProbeAnswer, ProbeOrder, ProbeReply, UploadTarget
from validator.board import Board
from validator.health.breaks import Break
from validator.health.evidence import Kind, Level
from validator.outages import only_facts
from validator.probes import Outcome, Probe, Probes

SHOWN_BYTES = 64
"""Of an object that was put: so many bytes of the nonce's stream show which URL it came by, and that URL was bound to
the length and the SHA-256 of the whole."""


class ProbeObjects:
    """The objects of the probes of one run. Threads may share it; every method blocks, and raises as the store does,
    ``Retryable`` for whatever is no fact about an object."""

    def __init__(self, store: ObjectStore, run: str, entropy: Callable[[int], bytes]) -> None:
        """``entropy`` gives so many bytes that nobody foresees."""
        self._store = store
        self._run = run
        self._entropy = entropy

    def prepare(self, probe: Probe) -> tuple[ProbeOrder, Sha256 | None]:
        """Put what is to be read, or sign what is to be put; the order, and the right answer where one is due."""
        nonce = self._entropy(NONCE_BYTES).hex()
        upload, proof = None, None
        with only_facts():
            if probe.kind is Kind.UPLINK:
                upload = self._sign(probe, uplink_bytes(nonce, probe.size_bytes))
            else:
                body = self._entropy(probe.size_bytes)
                proof = downlink_proof(nonce, body)
                self._store.put(self._key(probe), body)
        order = ProbeOrder(
            nonce=nonce,
            kind="uplink" if probe.kind is Kind.UPLINK else "downlink",
            size_bytes=probe.size_bytes,
            upload=upload,
            seconds_left=timeouts.PROBE_S,
        )
        return order, proof

    def judge(self, probe: Probe, answer: ProbeAnswer) -> Outcome:
        """Whether the miner has done what was ordered: right, wrong, or cut short."""
        if probe.kind is Kind.UPLINK:
            return self._arrived(probe)
        return Outcome.RIGHT if answer.proof == probe.proof else Outcome.WRONG

    def look(self, probe: Probe) -> None:
        """Return when the storage answers."""
        with only_facts():
            self._store.head(self._key(probe))

    def _arrived(self, probe: Probe) -> Outcome:
        """What lies at the key of the uplink, against what was ordered."""
        assert probe.order is not None, "it was prepared"
        with only_facts():
            try:
                found = self._store.get(self._key(probe), start=0, end=SHOWN_BYTES, max_bytes=SHOWN_BYTES)
            except ObjectMissing:
                return Outcome.WRONG
        if found.body != uplink_bytes(probe.order.nonce, SHOWN_BYTES)[: len(found.body)]:
            return Outcome.WRONG  # such as the object of an earlier probe
        return Outcome.RIGHT if found.info.size_bytes == probe.size_bytes else Outcome.SHORT

    def _sign(self, probe: Probe, body: bytes) -> UploadTarget:
        life_s = timeouts.PROBE_URL_LIFE_S
        put = self._store.presign_put(self._key(probe), size_bytes=len(body), sha256=sha256_hex(body), expires_s=life_s)
        return UploadTarget(url=put.url, headers=dict(put.headers), expires_in_s=float(life_s))

    def _key(self, probe: Probe) -> str:
        return keys.probe_key(self._run, probe.hotkey, "up" if probe.kind is Kind.UPLINK else "down")


class Probing:
    """The probes of one process, while it leads. The event loop owns it."""

    def __init__(self, board: Board, entropy: Callable[[int], bytes]) -> None:
        """``entropy`` as for ``ProbeObjects``."""
        self._board = board
        self._objects = ProbeObjects(board.store, board.spec.run, entropy)
        self._probes = Probes(board.health.usual)
        self._work: asyncio.Task[None] | None = None
        self._looked_s: float | None = None
        self._moved = board.journal.state.moved

    # What the leader's health asks.

    def want(self, kinds: Mapping[Kind, frozenset[Hotkey]], now_s: float, *, confirm: bool = False) -> None:
        """See ``Probes.want``."""
        self._probes.want(kinds, now_s, confirm=confirm)

    def take(self, now_s: float) -> Mapping[Kind, Mapping[Hotkey, Level]]:
        """What has come, or was given up, since the last call."""
        self._note_sleep(now_s)
        return self._probes.take()

    @property
    def wanted(self) -> int:
        """Wishes that are not met yet."""
        return self._probes.wanted

    # What miners see and send.

    def order(self, hotkey: Hotkey) -> ProbeOrder | None:
        """What to order of a miner whose heartbeat is being answered."""
        if not self._board.leadership.leading:
            return None
        now_s = self._board.now_s()
        self._note_sleep(now_s)
        return self._probes.order(hotkey, now_s)

    async def answer(self, hotkey: Hotkey, answer: ProbeAnswer) -> ProbeReply:
        """A miner's word that it has done what was ordered, or can't now. Raises ``Rejected``."""
        now_s = self._board.now_s()
        if not self._board.leadership.leading:
            raise Rejected("not_leader", f"the leader is {self._board.journal.state.leader or 'not known yet'}")
        self._note_sleep(now_s)
        probe, outcome = self._probes.answer(hotkey, answer.nonce, now_s), Outcome.VOID
        try:
            outcome, reason = await self._judge(probe, answer)
        finally:
            self._end(probe, outcome)
        return ProbeReply(counted=outcome is Outcome.RIGHT, reason=reason)

    # The work.

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self.turn()
                await asyncio.sleep(timeouts.PROBE_LOOK_S)
        finally:
            await leave(self._work)

    async def turn(self) -> None:
        """One look: begin what there is to prepare and to give up, beside the looks."""
        now_s = self._board.now_s()
        self._note_sleep(now_s)
        self._looked_s = now_s
        if self._work is not None and self._work.done():
            self._work.result()
            self._work = None
        if not self._board.leadership.leading:
            self._probes.drop()
            return
        moved = self._board.journal.state.moved
        if moved != self._moved:
            self._moved = moved
            self._probes.void(now_s)
        if self._work is None:
            late, drafts = self._probes.overdue(now_s), self._probes.drafts(now_s)
            if late or drafts:
                self._work = asyncio.create_task(self._do(late, drafts), name="probes")

    async def idle(self) -> None:
        """Until what is under way beside the looks is done."""
        if self._work is not None:
            await asyncio.wait({self._work})

    async def _do(self, late: list[Probe], drafts: list[Probe]) -> None:
        await asyncio.gather(*map(self._give_up, late), *map(self._prepare, drafts))

    async def _prepare(self, probe: Probe) -> None:
        try:
            order, proof = await in_thread(lambda: self._objects.prepare(probe))
        except BrigadeError as fault:
            logger.warning("a probe of {} can't be prepared yet: {}", probe.hotkey, fault)
            self._probes.failed(probe, self._board.now_s())
            return
        self._probes.prepared(probe, order, proof, self._board.now_s())

    async def _give_up(self, probe: Probe) -> None:
        """No answer in time is held against the link only if the storage answers at all."""
        outcome = Outcome.SILENT
        try:
            await in_thread(lambda: self._objects.look(probe))
        except BrigadeError as fault:
            logger.warning("a probe of {} tells nothing: {}", probe.hotkey, fault)
            outcome = Outcome.VOID
        self._end(probe, outcome)

    async def _judge(self, probe: Probe, answer: ProbeAnswer) -> tuple[Outcome, str]:
        if answer.busy:
            return Outcome.BUSY, "another probe comes later"
        try:
            outcome = await in_thread(lambda: self._objects.judge(probe, answer))
        except BrigadeError as fault:
            logger.warning("the answer of {} to a probe can't be checked: {}", probe.hotkey, fault)
            return Outcome.VOID, "the storage does not answer this validator"
        if outcome is Outcome.RIGHT:
            return outcome, ""
        logger.warning("{} answers a probe of its {} wrongly; it counts as no answer", probe.hotkey, probe.kind.value)
        return outcome, "this is not what was ordered; it counts as no answer"

    def _end(self, probe: Probe, outcome: Outcome) -> None:
        facts = {"hotkey": probe.hotkey, "kind": probe.kind.value, "size_bytes": probe.size_bytes}
        took = "no answer" if probe.took_s is None else f"{probe.took_s:.2f} s"
        logger.bind(event="probe", outcome=outcome.value, **facts).debug(
            "probe of the {} of {}: {}, {}", probe.kind.value, probe.hotkey, outcome.value, took
        )
        if self._probes.is_current(probe):
            self._note(probe, outcome)
        self._probes.end(probe, outcome, self._board.now_s())

    def _note(self, probe: Probe, outcome: Outcome) -> None:
        """Whether the order was answered, and whether the transfer came whole. Silence counts if the miner was heard
        since: then it had read the answer to its heartbeat, or its reading of answers is what fails."""
        vitals, hotkey = self._board.health.vitals, probe.hotkey
        if outcome is not Outcome.VOID and (outcome is not Outcome.SILENT or probe.heard):
            vitals.tried(Break.UNREACHABLE, hotkey, failed=outcome is Outcome.SILENT)
            vitals.put_off(hotkey, outcome is Outcome.BUSY)
        if probe.kind is Kind.UPLINK and outcome in (Outcome.RIGHT, Outcome.SHORT):
            vitals.tried(Break.TRUNCATE, hotkey, failed=outcome is Outcome.SHORT)

    def _note_sleep(self, now_s: float) -> None:
        if self._looked_s is not None and now_s - self._looked_s >= timeouts.ASLEEP_S:
            logger.info("this process slept: the probes under way tell nothing")
            self._probes.void(now_s)
            self._looked_s = now_s
