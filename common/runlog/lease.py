"""The lease: who may try to lead, and when a watcher may take over. Liveness only; the log alone is safety.

One signed object, swapped by its ETag. Invariants: no wall clocks are compared, a lease has expired when its ETag
did not change for T on the watcher's own monotonic clock; every write has a fresh nonce, so equal ETags mean equal
writes; a reply that was cut off is settled by reading the object again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from common import keys, timeouts
from common.clock import Clock
from common.errors import Rejected
from common.identity import Signer, decode_record, sign_record
from common.runlog.casput import GONE, Holder, Patience, put_once, read_now
from common.runlog.writer import NonceSource, random_nonce
from common.spec import SCHEMA, RunSpec
from common.store.port import ObjectStore
from common.typed import from_json, to_json
from common.units import Hotkey

LEASE = "lease"
MAX_LEASE_BYTES = 16 * 1024
MAX_COUNT = 1 << 48


@dataclass(frozen=True)
class Lease:
    """Content of ``runs/<run>/lease.json``."""

    schema: int
    run: str
    signer: Hotkey
    instance: str
    """Nonce of the process that holds it: a restarted validator is another instance."""
    term: int
    """The term that the holder leads, or begins with its ``leader_changed``."""
    counter: int
    """Writes of this lease so far, all holders together."""
    nonce: str


@dataclass(frozen=True)
class Sight:
    """What a watcher saw of the lease: this version, first at that time of its own."""

    etag: str | None
    since_s: float


@dataclass(frozen=True)
class Decision:
    """Whether to try to take the lease, and why."""

    take: bool
    reason: str


class LeaseLost(Rejected):
    """Another holder swapped the lease: stop leading, follow."""

    def __init__(self, reason: str) -> None:
        super().__init__("lease_lost", reason)


def encode_lease(lease: Lease, signer: Signer) -> bytes:
    """Sign ``lease``, whose ``signer`` is the signer's hotkey."""
    body = to_json(lease)
    assert isinstance(body, dict)
    return sign_record(LEASE, body, signer).encode()


def decode_lease(data: bytes, run: str, allowed: Collection[Hotkey]) -> Lease:
    """Read foreign bytes. Total: raises only ``Rejected``; ``not_allowed`` when ``allowed`` lacks the signer."""
    record = decode_record(LEASE, data, run, SCHEMA, MAX_LEASE_BYTES)
    lease = from_json(Lease, record.body, "bad_lease")
    if lease.signer not in allowed:
        raise Rejected("not_allowed", "the lease is held by a hotkey that may not lead")
    if not (0 < lease.term < MAX_COUNT and 0 < lease.counter < MAX_COUNT):
        raise Rejected("bad_lease", "term and counter are positive and small enough to be counted up")
    return lease


def slot_age_s(store: ObjectStore, run: str, seq: int) -> float:
    """Seconds since a slot was written, by the storage's own clock, for whoever leads: it wrote the lease a moment ago.
    0 when either is not there."""
    slot, lease = store.head(keys.log_key(run, seq)), store.head(keys.lease_key(run))
    return 0.0 if slot is None or lease is None else lease.modified_s - slot.modified_s


def observe(sight: Sight | None, etag: str | None, now_s: float) -> Sight:
    """The next sight: the same one while the version has not changed."""
    return sight if sight is not None and sight.etag == etag else Sight(etag, now_s)


@dataclass(frozen=True)
class Watcher:
    """Who looks at the lease."""

    hotkey: Hotkey
    instance: str
    found: str | None
    """ETag of the lease at this process's first look; a process that still lives writes another one."""


def decide(sight: Sight, lease: Lease | None, watcher: Watcher, now_s: float, lease_s: float) -> Decision:
    """Whether ``watcher`` may try to take the lease it sees. ``lease`` None: missing or unreadable.

    A lease of the watcher's own hotkey needs no waiting, if it is as it was at the first look: it was left by an
    earlier process. If it has changed since, another process with the same key is alive: both would depose each other
    for ever.
    """
    if sight.etag is None:
        return Decision(True, "nobody holds the lease")
    if lease is not None and lease.signer == watcher.hotkey:
        if lease.instance == watcher.instance:
            return Decision(True, "the lease is our own")
        if sight.etag == watcher.found:
            return Decision(True, "the lease was left by an earlier process of this hotkey")
    holder = "an unreadable lease" if lease is None else f"the lease of {lease.signer}, term {lease.term}"
    waited_s = now_s - sight.since_s
    if waited_s >= lease_s:
        return Decision(True, f"{holder} has not changed for {waited_s:.1f} s")
    return Decision(False, f"{holder} may live; it expires in {lease_s - waited_s:.1f} s")


class LeaseKeeper:
    """Watches, takes and renews one run's lease for one process."""

    def __init__(
        self,
        store: ObjectStore,
        spec: RunSpec,
        signer: Signer,
        clock: Clock,
        instance: str,
        nonce_source: NonceSource = random_nonce,
        patience: Patience | None = None,
        lease_s: float = timeouts.LEASE_S,
        allowed: Callable[[], Collection[Hotkey]] | None = None,
    ) -> None:
        """``allowed`` tells who may lead now, as the log has it; without it the spec says so."""
        self._store = store
        self._spec = spec
        self._signer = signer
        self._clock = clock
        self._nonce = nonce_source
        self._patience = patience or Patience()
        self._lease_s = lease_s
        self._allowed = allowed or (lambda: spec.validators)
        self._sight: Sight | None = None
        self._watcher: Watcher | None = None
        self._seen: Lease | None = None
        self._held: tuple[Lease, str] | None = None
        self._confirmed_s = 0.0
        self.instance = instance

    @property
    def held(self) -> Lease | None:
        """The lease as this process last wrote it; None when it does not lead."""
        return self._held[0] if self._held else None

    @property
    def seen(self) -> Lease | None:
        """The lease as last seen in the store: where followers learn who tries to lead."""
        return self._seen

    @property
    def seen_since_s(self) -> float | None:
        """When this process first saw the lease as it last saw it; None before the first look."""
        return None if self._sight is None else self._sight.since_s

    def sure(self) -> bool:
        """Whether the last write was confirmed less than T ago, so that no watcher can have seen it expire."""
        return self._held is not None and self._clock.monotonic_s() - self._confirmed_s < self._lease_s

    def watch(self) -> Decision:
        """Look once at the lease in the store. Raises ``Retryable`` when the store stays away."""
        found = read_now(self._store, keys.lease_key(self._spec.run), self._patience)
        self._see(found)
        assert self._sight is not None
        if self._watcher is None:
            self._watcher = Watcher(self._signer.hotkey, self.instance, self._sight.etag)
        return decide(self._sight, self._seen, self._watcher, self._clock.monotonic_s(), self._lease_s)

    def acquire(self, term: int) -> Decision:
        """Look, and take the lease for ``term`` if that is allowed; ``held`` tells whether it is ours now.

        The caller then begins the term with ``leader_changed``; losing that slot, it calls ``abandon``.
        Raises ``Retryable`` when the store stays away; the lease may be ours then, and the next call finds out.
        """
        decision = self.watch()
        assert self._sight is not None
        if not decision.take:
            return decision
        self._held = None
        lease = self._next(term, self._seen)
        if self._swap(lease, self._sight.etag):
            return decision
        return Decision(False, "another watcher took the lease first")

    def renew(self) -> None:
        """Write the held lease again. Raises ``LeaseLost``, and ``Retryable`` when the store stays away."""
        if self._held is None:
            raise LeaseLost("this process holds no lease")
        held, etag = self._held
        if not self._swap(self._next(held.term, held), etag):
            self._held = None
            raise LeaseLost(self._why_lost())

    def abandon(self) -> None:
        """Forget the lease without touching the store: it expires by itself."""
        self._held = None

    def _why_lost(self) -> str:
        if self._sight is not None and self._sight.etag is None:
            return "the lease was deleted from the store"
        return f"the lease was taken by {self._seen.signer if self._seen else 'unreadable bytes'}"

    def _next(self, term: int, previous: Lease | None) -> Lease:
        counter = previous.counter + 1 if previous else 1
        return Lease(SCHEMA, self._spec.run, self._signer.hotkey, self.instance, term, counter, self._nonce())

    def _swap(self, lease: Lease, replaces: str | None) -> bool:
        # Watchers count T from when they first see the write, which is after this moment.
        started_s = self._clock.monotonic_s()
        body = encode_lease(lease, self._signer)
        holder = put_once(self._store, keys.lease_key(self._spec.run), body, replaces, self._patience)
        self._see(holder)
        if holder.mine:
            self._held = (lease, holder.etag)
            self._confirmed_s = started_s
        return holder.mine

    def _see(self, found: Holder | None) -> None:
        etag = found.etag if found and found != GONE else None
        self._sight = observe(self._sight, etag, self._clock.monotonic_s())
        self._seen = self._read(found)

    def _read(self, found: Holder | None) -> Lease | None:
        if found is None:
            return None
        try:
            return decode_lease(found.body, self._spec.run, self._allowed())
        except Rejected:
            return None  # decide() treats it as held by a stranger: it expires like any other
