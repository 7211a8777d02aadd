"""Is one object of a run what its key and the log say? One function for each kind of object.

Each raises ``Rejected`` with what is wrong; ``verify.py`` adds the object's key. Invariant: every byte of an object
counts, by a hash in its name, or by a signature over canonical bytes that are read back and compared.
"""

from __future__ import annotations

from common.codec.container import partition_hashes
from common.codec.params import delta_params
from common.convictions import Conviction, decode_conviction
from common.errors import Rejected
from common.keys import KeyParts, delta_key
from common.records import Manifest, StoredSubmission, decode_submission
from common.reports import Report, decode_report
from common.runlog.commands import decode_command
from common.runlog.entries import PlanMember
from common.runlog.lease import decode_lease
from common.runlog.orders import ordered_by, why_not
from common.runlog.replay import Step
from common.runlog.state import RunState
from common.runlog.told import Ended, Obeyed, slot_missing
from common.units import sha256_hex

STALE = frozenset(
    {
        "not_allowed",
        "stale_term",
        "future_term",
        "not_leader",
        "bad_transition",
        "bad_plan",
        "no_quorum",
        "bad_revision",
    }
)
"""Voids that honest writers may leave behind: whole entries that name their place in the chain. Every other void is
damage; were it passed over, the chain of hashes would not cover what lies before it."""


def check_step(step: Step) -> None:
    """A slot is a valid entry, or a whole one that came too late."""
    if step.void is not None and step.void.code not in STALE:
        raise Rejected(step.void.code, step.void.message)


def check_name(parts: KeyParts, body: bytes) -> None:
    """The bytes have the hash that the key names."""
    if sha256_hex(body) != parts.sha256:
        raise Rejected("checksum_mismatch", "its bytes do not have the SHA-256 in its name")


def check_lease(state: RunState, body: bytes) -> None:
    """Signed by who may or might lead, and by the leader if its term has begun."""
    lease = decode_lease(body, state.run, state.ever_validators)
    leader = state.leader_of(lease.term)
    if leader is not None and leader != lease.signer:
        raise Rejected("wrong_leader", f"it is held for term {lease.term}, which {leader} leads")


def check_command(obeyed: Obeyed, body: bytes) -> None:
    """The owner ordered what the entry does, and nothing had happened since that made the order void."""
    command = decode_command(body, obeyed.state.spec)
    entry = obeyed.entry
    if ordered_by(entry.data) != (command.action, command.revision, command.round):
        raise Rejected("wrong_command", f"it orders something else than the entry in slot {entry.seq} does")
    objection = why_not(obeyed.state, command)
    if objection:
        raise Rejected("wrong_command", f"it was no order any more in slot {entry.seq}: {objection}")


def check_report(state: RunState, parts: KeyParts, body: bytes) -> Report:
    """Named by its hash, signed by the validator in its key, about the round in its key."""
    check_name(parts, body)
    report, _ = decode_report(body, state.run)
    if report.signer != parts.hotkey or report.signer not in state.ever_validators:
        raise Rejected("wrong_signer", "it is not signed by the validator whose folder it lies in")
    if report.round != parts.round_id:
        raise Rejected("wrong_round", f"it is about round {report.round}")
    return report


def check_report_facts(report: Report, end: Ended) -> None:
    """What a report says of its round is what the log says: its end, its revision, the tokens of each member."""
    if report.committed != end.committed:
        said, told = ("committed" if fact else "aborted" for fact in (report.committed, end.committed))
        raise Rejected("wrong_report", f"it calls round {report.round} {said}, which the log has as {told}")
    if report.revision != end.head:
        raise Rejected("wrong_report", f"it has head {report.revision} after the round, the log revision {end.head}")
    if not end.committed:
        return
    said_tokens = {member.hotkey: member.tokens_merged for member in report.members}
    for hotkey in sorted(said_tokens.keys() | end.tokens.keys()):
        said_of, merged = said_tokens.get(hotkey, 0), end.tokens.get(hotkey, 0)
        if said_of != merged:
            raise Rejected("wrong_report", f"it has {said_of} merged tokens of {hotkey}, the plan {merged}")


def check_conviction(state: RunState, parts: KeyParts, body: bytes) -> Conviction:
    """Named by its hash, signed by the validator in its key, about the round in its key. Whether it is true is asked
    by whoever reads it (``recheck``): a false one says something of its signer, and nothing of the run."""
    check_name(parts, body)
    conviction = decode_conviction(body, state.run)
    if conviction.signer != parts.hotkey or conviction.signer not in state.ever_validators:
        raise Rejected("wrong_signer", "it is not signed by the validator whose folder it lies in")
    if conviction.round != parts.round_id:
        raise Rejected("wrong_round", f"it is about round {conviction.round}")
    return conviction


def check_manifest(state: RunState, key: str, parts: KeyParts, body: bytes) -> StoredSubmission:
    """Signed by the miner in its key, receipted by a leader in its term, on a base that the log knows."""
    stored = decode_submission(body, state.run)
    manifest, receipt = stored.manifest, stored.receipt
    if manifest.key.removesuffix(".delta") != key.removesuffix(".json") or manifest.signer != parts.hotkey:
        raise Rejected("wrong_key", "it belongs to another delta than the one beside it")
    if receipt.term > state.term:
        raise slot_missing(state, key, f"its receipt is of term {receipt.term}, which the log has not begun")
    if state.leader_of(receipt.term) != receipt.signer:
        raise Rejected("bad_receipt", f"the receipt's signer did not lead term {receipt.term}")
    base = state.revisions.get(manifest.base_revision)
    if base is None or base.sha256 != manifest.base_sha256:
        raise Rejected("wrong_base", f"the log has no revision {manifest.base_revision} with the hash that it names")
    return stored


def check_member(state: RunState, member: PlanMember, stored: StoredSubmission) -> None:
    """A plan's member is the submission that was receipted, and was trained on what the plan says."""
    manifest = stored.manifest
    facts = (manifest.round, manifest.shard, manifest.signer, manifest.delta, manifest.tokens)
    if facts != (member.round, member.shard, member.hotkey, member.delta, member.tokens_claimed):
        raise Rejected("wrong_member", "the plan says something else of this submission than its manifest")
    if stored.manifest_record.sha256 != member.manifest_sha256:
        raise Rejected("wrong_member", "the plan names another manifest of this delta")
    base = state.revisions[member.base_revision]
    if member.decision == "accepted" and (manifest.base_revision, manifest.base_sha256) != (base.revision, base.sha256):
        raise Rejected("wrong_base", f"the plan has it as trained on revision {base.revision}, its manifest not")
    assert manifest.key == delta_key(state.run, member.round, member.shard, member.hotkey, member.delta.sha256)


def check_partitions(state: RunState, manifest: Manifest, delta: bytes, count: int) -> None:
    """An accepted delta's ranges have the hashes that its manifest gives them; ``count`` is the shard's length."""
    params = delta_params(state.spec.codec, manifest.base_revision)
    if manifest.partitions != partition_hashes(delta, count, params, state.spec.reduce.partitions):
        raise Rejected("wrong_partitions", "its partitions do not have the hashes that its manifest gives them")
