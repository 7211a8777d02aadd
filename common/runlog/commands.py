"""Commands that a run's owner signs and lays into the bucket, for whoever leads: objects named by their hash.

A command names the slot of the entry that it answers, so it is good for that one only and can't be replayed. The leader
notes the command's hash in the log when it obeys; ``brigade run verify`` proves the command behind the entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common import keys
from common.errors import Rejected
from common.identity import SignedRecord, Signer, decode_record, sign_record
from common.runlog.state import RunState
from common.spec import SCHEMA, RunSpec
from common.store.port import ObjectMissing, ObjectStore
from common.typed import from_json, to_json
from common.units import Hotkey, Sha256, sha256_hex

COMMAND = "command"
MAX_COMMAND_BYTES = 16 * 1024
MAX_LISTED = 1000
"""Commands that a leader looks through."""


@dataclass(frozen=True)
class Command:
    """One order of the owner."""

    schema: int
    run: str
    signer: Hotkey
    action: Literal["resume"]
    seq: int
    """Slot of the entry that it answers: the ``paused`` one."""
    at_ms: int
    """The owner's wall clock, for people."""


def resume_command(state: RunState, owner: Signer, at_ms: int) -> SignedRecord:
    """The order to go on after the present pause. ValueError when the run is not paused."""
    if state.paused is None:
        raise ValueError("the run is not paused")
    command = Command(SCHEMA, state.run, owner.hotkey, "resume", state.paused.seq, at_ms)
    body = to_json(command)
    assert isinstance(body, dict)
    return sign_record(COMMAND, body, owner)


def put_command(store: ObjectStore, record: SignedRecord) -> Sha256:
    """Lay a command into the bucket. Raises as ``ObjectStore.put``."""
    data = record.encode()
    sha256 = sha256_hex(data)
    store.put(keys.command_key(str(record.body["run"]), sha256), data)
    return sha256


def decode_command(data: bytes, spec: RunSpec) -> Command:
    """Read a command from foreign bytes. Raises ``Rejected``, and ``wrong_signer`` unless the owner signed it."""
    record = decode_record(COMMAND, data, spec.run, SCHEMA, MAX_COMMAND_BYTES)
    command = from_json(Command, record.body, "bad_command")
    if command.signer != spec.owner:
        raise Rejected("wrong_signer", "a command is signed by the run's owner")
    return command


def find_resume(store: ObjectStore, state: RunState) -> Sha256 | None:
    """The hash of the owner's order to go on after the present pause, if one lies in the bucket. Blocking.

    What is no command of the owner is passed over. Raises as ``ObjectStore``.
    """
    if state.paused is None:
        return None
    for count, info in enumerate(store.list(keys.commands_prefix(state.run))):
        parts = keys.parse_key(state.run, info.key)
        if count >= MAX_LISTED or parts is None or parts.sha256 is None or info.size_bytes > MAX_COMMAND_BYTES:
            continue
        try:
            data = store.get(info.key, max_bytes=MAX_COMMAND_BYTES).body
            command = decode_command(data, state.spec)
        except (ObjectMissing, Rejected):
            continue
        if sha256_hex(data) == parts.sha256 and (command.action, command.seq) == ("resume", state.paused.seq):
            return parts.sha256
    return None
