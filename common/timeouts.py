"""Every waiting time of Brigade's processes that is not in a run's spec, in one place, each derived where it can be.

The checks at the end are run at import: contradictory times never start a process.
"""

from __future__ import annotations

CONNECT_S = 3.0
"""To open a TCP connection."""
CONTROL_READ_S = 10.0
"""For the answer to a control request (heartbeat, manifest)."""
BULK_STALL_S = 15.0
"""A transfer in which no byte moves for so long is broken off and resumed."""
STORE_READ_S = 10.0
"""For the answer of the object store to a small request."""
RETRY_FIRST_S = 0.25
"""First pause before a retry; doubled each time, with jitter."""
RETRY_MOST_S = 5.0
"""Longest pause before a retry while the other end is away."""
LEASE_S = 15.0
"""A lease whose ETag did not change for so long on the watcher's own clock has expired."""
LEASE_RENEW_S = LEASE_S / 4
"""The leader renews this often."""
CHAIN_CALL_S = 30.0
"""For one call to the chain, reads and writes alike."""
METAGRAPH_REFRESH_S = 5.0
"""Shortest interval at which a process re-reads the metagraph."""
NONCE_MAX_AGE_S = 10.0
"""btauth/1: oldest request accepted."""
NONCE_SKEW_S = 2.0
"""btauth/1: how far ahead a request's time may lie."""
NONCE_RETENTION_S = 4 * (NONCE_MAX_AGE_S + NONCE_SKEW_S)
"""How long nonces are remembered."""
DRAIN_S = 10.0
"""Longest orderly shutdown of ``brigade up``."""
WAIT_POLL_S = 0.25
"""Pause between looks of a process that waits for another."""

assert LEASE_RENEW_S * 3 < LEASE_S, "a lease must survive two lost renewals"
assert STORE_READ_S + CONNECT_S < LEASE_S, "one slow storage call must not cost the lease"
assert NONCE_MAX_AGE_S + NONCE_SKEW_S <= NONCE_RETENTION_S, "replays would slip through"
