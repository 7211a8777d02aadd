"""Every waiting time of Brigade's processes that is not in a run's spec, in one place, each derived where it can be.

``check`` runs at import: contradictory times never start a process.
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
COMMAND_LOOK_S = 2.0
"""The leader looks for its owner's orders so often, in every phase."""
ORDER_WAIT_S = 300.0
"""Whoever gave an order waits so long to see it obeyed: a pause waits for the open round's end."""
KEYS_LOOK_S = 2.0
"""A validator looks so often whether its storage file has changed."""
WAIT_POLL_S = 0.25
"""Pause between looks of a process that waits for another."""

CHAIN_CLOSE_S = 2.0
"""For an orderly goodbye to the chain's node."""
PEER_CLOSE_S = CHAIN_CLOSE_S / 2
"""The local chain waits so long for a client that doesn't answer when it hangs up: less than clients wait."""
SDIST_FETCH_S = 240.0
"""For pip to fetch the archive that holds the chain's metadata."""
STORAGE_READY_S = 30.0
"""For the embedded storage server to start and take a write."""
STORAGE_STOP_S = DRAIN_S / 2
"""For the embedded storage server to end by itself, before it is killed: its owner must be done within the drain."""
LONGEST_ASKED_WAIT_S = 60.0
"""A Retry-After beyond this is cut: the caller has deadlines of its own."""
PROBE_URL_LIFE_S = 300
"""Life of the URL that a bucket is tried with."""
MAX_CLOCK_SKEW_S = 60.0
"""How far our clock may be off the storage's: presigned URLs would die early; S3 itself refuses at 15 minutes."""
ROLE_STOP_S = 4.0
"""For the parts of a miner or a validator that was told to stop: the current step, and writing the state. What
hangs on the network then is left behind."""
GOODBYE_S = 1.0
"""Of that, for the last heartbeat of a miner."""
ORDER_RESERVED_S = 1.5
"""Of the time to drain, for each group of processes that is stopped after this one."""
SUMMARY_S = 120.0
"""For the summary of a run that has reached its goal."""
SUMMARY_WHEN_FAILED_S = SUMMARY_S / 6
"""For the summary of a run that failed."""
SUMMARY_WHEN_STOPPED_S = 4.0
"""For the summary of a run that was told to stop; what is left of the time to drain is for the processes to end."""
SERVERS_READY_S = 2 * STORAGE_READY_S
"""For storage and chain to answer ``brigade up``, on a loaded machine."""
FIRST_STATUS_S = 1.5 * SERVERS_READY_S
"""For the validator's first answer."""
STATUS_EVERY_S = 0.5
"""Pause between two looks of ``brigade up`` at the validator."""
STATUS_CACHE_S = 0.2
"""Age up to which a validator answers with the status it has made already."""
REPORT_WITHIN_S = 60.0
"""For the last report, on a loaded machine."""
LEADER_LOOK_S = 0.2
"""Pause between two looks of a leader at its round."""
IDLE_LOOK_S = 0.5
"""The same, when there is nothing to lead."""
FOLLOWER_LOOK_S = 1.0
"""Pause between two looks of a follower at the log."""
ASLEEP_S = RETRY_MOST_S + 5.0
"""A gap between two looks that no wait of ours explains: the process was stopped, or starved."""
CHAIN_AWAY_S = RETRY_MOST_S
"""Pause before the chain is asked again for what it refused or did not answer."""
BLOCK_LOOK_S = 1.0
"""A leader that waits for a block to be final asks the chain so often."""
METAGRAPH_STALE_S = 12 * METAGRAPH_REFRESH_S
"""A metagraph older than this is read again by the next look, if the chain answers."""
REQUEST_HEAD_S = 10.0
"""A validator closes a connection whose request's head is not complete so long after it began."""
KEEP_ALIVE_S = 75
"""A validator closes a connection on which nothing was asked for so long."""
WATCH_LOOK_S = 1.0
"""Pause between two looks of a watchdog."""
STILL_S = 2 * BULK_STALL_S
"""A transfer of which no byte has moved for so long stands still: it was broken off and begun anew, to no avail."""
AWAY_TOLD_S = BULK_STALL_S
"""Trouble with storage or log that passes sooner is not worth a word to anybody but the log."""
PROBE_S = 20.0
"""From the order of a probe until its answer: a usual link takes a second."""
PROBE_REST_S = 60.0
"""Between two probes of one miner, unless one is to confirm another."""
PROBE_LOOK_S = 0.5
"""Pause between two looks of a leader at its probes."""
PROBE_KEEP_S = 60.0
"""A prepared probe waits so long for the heartbeat whose answer orders it."""
PROBE_AGAIN_S = 15.0
"""Before a miner is asked again whose link was in use, or when the storage was away."""
PROBE_WANT_S = 600.0
"""A wish for a probe that could not be met for so long is dropped."""
COMPLAINT_LOOK_S = 5.0
"""A miner looks so often whether a plan has left it out."""
COMPLAINT_MOST_S = 300.0
"""Longest pause before a validator that does not answer is told again."""
STEPS_STILL = 20
"""Median inner steps without a finished one after which the training stands still."""
ASK_FIRST_S = CONNECT_S + 1.0
"""A miner that joins waits so long for the leader's first answer before it fetches: the run may stand still."""
FIRST_STEP_S = 4 * CHAIN_CALL_S
"""The same before the first step, which compiles kernels and reads the data for the first time."""


def check() -> None:
    """Raise ValueError when two times contradict each other."""
    pauses = (PROBE_LOOK_S, LEADER_LOOK_S, IDLE_LOOK_S, FOLLOWER_LOOK_S, COMMAND_LOOK_S, RETRY_MOST_S)
    rules = {
        "a lease must survive two lost renewals": LEASE_RENEW_S * 3 < LEASE_S,
        "one slow storage call must not cost the lease": STORE_READ_S + CONNECT_S < LEASE_S,
        "replays would slip through": NONCE_MAX_AGE_S + NONCE_SKEW_S <= NONCE_RETENTION_S,
        "the storage server must be down within the drain": STORAGE_STOP_S < DRAIN_S,
        "a client must outwait the node's goodbye": PEER_CLOSE_S < CHAIN_CLOSE_S,
        "a chain call must outlast a goodbye": CHAIN_CLOSE_S < CHAIN_CALL_S,
        "pauses between retries must grow": RETRY_FIRST_S < RETRY_MOST_S <= LONGEST_ASKED_WAIT_S,
        "the storage must notice a dead link before its answer is given up": CONNECT_S < STORE_READ_S,
        "a role must end within what the drain leaves it": ROLE_STOP_S <= DRAIN_S - 2 * ORDER_RESERVED_S,
        "a goodbye must leave time to store the state": GOODBYE_S <= ROLE_STOP_S / 2,
        "a summary must leave time to drain": SUMMARY_WHEN_STOPPED_S < DRAIN_S,
        "a status must be newer than the look before": STATUS_CACHE_S < STATUS_EVERY_S,
        "an order must be looked for while its giver waits": COMMAND_LOOK_S < ORDER_WAIT_S,
        "no regular pause may look like sleep": max(pauses) < ASLEEP_S,
        "a caller's slow connection must not cost its request": CONNECT_S < REQUEST_HEAD_S < KEEP_ALIVE_S,
        "a look of the watchdog must not look like sleep": WATCH_LOOK_S < ASLEEP_S,
        "a retry must have had its chance before a transfer stands still": BULK_STALL_S + RETRY_MOST_S < STILL_S,
        "a takeover must have had its chance before trouble is told": LEASE_RENEW_S < AWAY_TOLD_S <= STILL_S,
        "the first word must have had time for a connection": CONNECT_S < ASK_FIRST_S,
        "a first step takes longer than others": STILL_S < FIRST_STEP_S,
        "complaints must not come faster than they are looked for": METAGRAPH_REFRESH_S <= COMPLAINT_LOOK_S,
        "pauses between complaints must grow": COMPLAINT_LOOK_S < COMPLAINT_MOST_S,
        "a probe's URL must outlive a clock that is off": MAX_CLOCK_SKEW_S < PROBE_URL_LIFE_S,
        "a probe's URL must outlive the wait for its order": PROBE_KEEP_S + PROBE_S + MAX_CLOCK_SKEW_S
        < PROBE_URL_LIFE_S,
        "an answer to a probe that was lost once must still be in time": CONTROL_READ_S + CONNECT_S < PROBE_S,
        "what is asked of a miner again must have its turn before it is dropped": PROBE_REST_S < PROBE_WANT_S,
    }
    for broken in (rule for rule, holds in rules.items() if not holds):
        raise ValueError(f"contradictory waiting times: {broken}")


check()
