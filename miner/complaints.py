"""When a leader's plan leaves out what it gave a receipt for: telling the other validators, who convict by that alone.

They are found as the leader is, by the address that each publishes on chain: all who may or might lead, and whoever
has a validator's permit, but not the leader itself. Each is asked until it answers, with growing pauses; nothing waits
for it, and a miner that can reach nobody just goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loguru import logger

from common import timeouts
from common.chain.port import ChainPort, Neuron
from common.errors import Rejected, RemoteError, Retryable
from common.records import StoredSubmission
from common.runlog.state import RunState
from common.spec import spec_hash
from common.units import Hotkey
from miner.client import ValidatorClient
from miner.context import Context
from miner.follow import LogView
from miner.places import endpoint_url
from miner.receipts import Receipts

MOST_ASKED = 16
Connect = Callable[[str, Hotkey], ValidatorClient]


@dataclass
class _Case:
    """One broken receipt."""

    answered: set[Hotkey] = field(default_factory=set)
    tries: int = 0
    due_s: float = 0.0


class Complaints:
    """Those of one miner. The event loop owns it."""

    def __init__(
        self,
        context: Context,
        receipts: Receipts,
        view: Callable[[], LogView],
        chain: ChainPort,
        allow_private: bool,
        connect: Connect | None = None,
    ) -> None:
        """``connect`` replaces the network."""
        self._context = context
        self._receipts = receipts
        self._view = view
        self._chain = chain
        self._allow_private = allow_private
        self._connect = connect or (lambda url, server: ValidatorClient(url, server, context.signer, context.clock))
        self._cases: dict[str, _Case] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._context.sleep(timeouts.COMPLAINT_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Tell of every broken receipt that is due."""
        now_s = self._context.clock.monotonic_s()
        broken = [(one.receipt_record.sha256, one, why) for one, why in self._receipts.broken(self._view().first_plans)]
        self._cases = {of: self._cases.get(of) or _Case() for of, _, _ in broken}
        for of, one, why in broken:
            case = self._cases[of]
            if now_s >= case.due_s:
                case.tries += 1
                case.due_s = now_s + min(timeouts.COMPLAINT_MOST_S, timeouts.COMPLAINT_LOOK_S * 2.0**case.tries)
                await self._tell(one, why, case)

    async def _tell(self, one: StoredSubmission, why: str, case: _Case) -> None:
        if case.tries == 1:
            logger.bind(event="left_out", round=int(one.receipt.round)).error("{}; telling the other validators", why)
        try:
            asked = _others(self._view().state, one, (await self._chain.metagraph(self._context.spec.netuid)).neurons)
        except RemoteError as fault:
            logger.debug("whom to complain to is not known: {}", fault)
            return
        for neuron in asked:
            if neuron.hotkey not in case.answered and await self._ask(neuron, one):
                case.answered.add(neuron.hotkey)
        if asked and case.answered.issuperset(neuron.hotkey for neuron in asked):
            await self._receipts.forget(one)

    async def _ask(self, neuron: Neuron, one: StoredSubmission) -> bool:
        """Whether it has answered."""
        assert neuron.endpoint is not None, "only those with an address are asked"
        try:
            client = self._connect(endpoint_url(neuron.endpoint, self._allow_private), neuron.hotkey)
        except Rejected as refusal:
            logger.debug("{} can't be told: {}", neuron.hotkey, refusal)
            return True
        try:
            health = await client.health()
            if (health.run, health.spec_sha256) != (self._context.spec.run, spec_hash(self._context.spec)):
                return True
            reply = await client.complain(one.manifest_record, one.receipt_record)
            logger.info("{} was told of it: {}", neuron.hotkey, reply.reason)
        except Retryable as fault:
            logger.debug("{} is told later: {}", neuron.hotkey, fault)
            return False
        except Rejected as refusal:
            logger.warning("{} does not take the complaint: {}", neuron.hotkey, refusal)
        finally:
            await client.retire()
        return True


def _others(state: RunState, one: StoredSubmission, neurons: tuple[Neuron, ...]) -> list[Neuron]:
    """Validators with an address, the leader in question left out."""
    known = state.ever_validators
    found = [n for n in neurons if n.endpoint is not None and (n.hotkey in known or n.validator_permit)]
    mine = (one.receipt.signer, one.receipt.hotkey)
    return sorted((n for n in found if n.hotkey not in mine), key=lambda n: n.hotkey not in known)[:MOST_ASKED]
