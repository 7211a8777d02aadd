"""How a simulated validator gets the lead and keeps it: alone by starting, among several by the production lease.

``LeaseClaim`` is ``validator.leadership`` over the lease and the log in the store in memory; only its clock is virtual.
Invariant: nothing here decides who leads; the log does.
"""

from __future__ import annotations

from typing import Protocol

from common.clock import Clock
from common.identity import Signer
from common.runlog.entries import LeaderChanged
from common.runlog.lease import LeaseKeeper
from common.runlog.state import RunState
from common.runlog.writer import LogWriter, NonceSource
from common.spec import RunSpec
from common.store.port import ObjectStore
from validator.journal import Journal
from validator.leadership import Leadership
from validator.simulator.logs import ONCE, Finish, JournalLog, Log


class Claim(Protocol):
    """One process's claim to lead."""

    @property
    def log(self) -> Log:
        """The log as it knows it."""
        ...

    @property
    def term(self) -> int:
        """The term that it leads, or led last."""
        ...

    def try_lead(self) -> bool:
        """One attempt. Raises ``Retryable``."""
        ...

    def check(self) -> bool:
        """Whether this process leads, as far as it knows."""
        ...

    def sure(self) -> bool:
        """Whether nobody can have taken the lead unseen."""
        ...

    def renew(self, force: bool = False) -> None:
        """Say that this process is still there. Raises ``Retryable``."""
        ...


class SoleClaim:
    """Of the only validator there is: whoever starts leads."""

    def __init__(self, log: Log, instance: str) -> None:
        self.log = log
        self._instance = instance
        self._leads = False

    @property
    def term(self) -> int:
        return self.log.state.term

    def try_lead(self) -> bool:
        self.log.append(LeaderChanged(self._instance), "a process takes the lead", new_term=True)
        self._leads = True
        return True

    def check(self) -> bool:
        return self._leads

    def sure(self) -> bool:
        return self._leads

    def renew(self, force: bool = False) -> None:
        """There is nobody else."""


class LeaseClaim:
    """Of one among several."""

    def __init__(
        self,
        log_store: ObjectStore,
        lease_store: ObjectStore,
        spec: RunSpec,
        signer: Signer,
        clock: Clock,
        instance: str,
        nonce: NonceSource,
        state: RunState,
        finish: Finish,
    ) -> None:
        """``lease_store``: the same, unless somebody shows each validator a lease of its own."""
        journal = Journal(LogWriter(log_store, spec, signer, clock, nonce, ONCE), state, signer.hotkey)
        keeper = LeaseKeeper(
            lease_store, spec, signer, clock, instance, nonce, ONCE, allowed=lambda: journal.state.validators
        )
        self._lead = Leadership(keeper, journal, clock)
        self._finish = finish
        self.log = JournalLog(journal, finish, lambda: self._lead.term)

    @property
    def term(self) -> int:
        return self._lead.term

    def try_lead(self) -> bool:
        return bool(self._finish(self._lead.try_lead()))

    def check(self) -> bool:
        return self._lead.check()

    def sure(self) -> bool:
        return self._lead.sure()

    def renew(self, force: bool = False) -> None:
        self._finish(self._lead.renew(force))
