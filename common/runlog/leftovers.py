"""What lies under a run and the log did not lead to: each such object proved by its name's hash, or by its signature.

An object that nothing refers to is no fault by itself; one that gives away a cut log is (``told.py``).
"""

from __future__ import annotations

from common import keys
from common.convictions import MAX_CONVICTION_BYTES
from common.keys import KeyParts
from common.probes import MAX_PROBE_BYTES
from common.records import MAX_MANIFEST_BYTES
from common.reductions import decode_reduction
from common.reports import MAX_REPORT_BYTES
from common.runlog import checks
from common.runlog.commands import decode_command
from common.runlog.lease import MAX_LEASE_BYTES
from common.runlog.proof import Work, may_be_gone, naming, prove_manifest
from common.runlog.proving import VerifyError
from common.runlog.spent import is_spent
from common.runlog.state import RunState
from common.runlog.told import check_tail, suspicion
from common.store.multipart import PART_BYTES
from common.store.port import ObjectInfo, ObjectMissing
from common.units import Sha256

MAX_SMALL_BYTES = max(MAX_MANIFEST_BYTES, MAX_REPORT_BYTES, MAX_LEASE_BYTES, MAX_CONVICTION_BYTES)


def verify_rest(work: Work, state: RunState) -> None:
    """Every listed object that the log did not lead to."""
    members = [member for plan in work.told.plans.values() for member in plan.members]
    named = {
        make(work.run, member.round, member.shard, member.hotkey, member.delta.sha256)
        for member in members
        for make in (keys.delta_key, keys.manifest_key)
    }
    places = {(member.round, member.shard, member.hotkey) for member in members}
    for info in work.listing:
        parts = keys.parse_key(work.run, info.key)
        if parts is None:
            raise VerifyError(info.key, "a stranger object: no part of a run has such a key")
        if info.key in work.reader.proved:
            continue
        if parts.kind == "probe":
            _check_probe(info)
            continue
        with naming(info.key):
            _verify_object(work, state, info, parts)
        check_tail(state, work.told, info.key, parts)
        if parts.kind in ("lease", "report", "conviction") or info.key in named or _is_made_for(work, parts):
            continue
        if parts.kind in ("delta", "manifest") and (parts.round_id, parts.shard, parts.hotkey) in places:
            work.replaced += parts.kind == "delta"
            continue
        work.unreferenced.append(info.key)
        why = suspicion(state, work.told, parts)
        if why:
            work.suspicious[info.key] = why
    work.say(f"objects: {len(work.reader.proved)} right; {len(work.unreferenced)} that nothing refers to")


def _check_probe(info: ObjectInfo) -> None:
    """Any bytes will do: nothing in a run rests on them. But nobody hides a load of them there."""
    if info.size_bytes > MAX_PROBE_BYTES:
        raise VerifyError(info.key, f"it has {info.size_bytes} bytes, and a probe at most {MAX_PROBE_BYTES}")


def _is_made_for(work: Work, parts: KeyParts) -> bool:
    """Whether owners made it for a plan that was committed, or may be yet: of an aborted round it is left over."""
    if parts.kind not in ("mean", "reduction") or parts.round_id is None:
        return False
    ended = work.told.ended.get(parts.round_id)
    return ended is None or ended.committed


def _prove_bytes(work: Work, state: RunState, info: ObjectInfo, kind: str, sha256: Sha256) -> None:
    """No store holds an object that came in parts against the hash of the whole, so a sender can leave wrong bytes
    under a name. Leaders refuse them when they read them; what plans accept was proved before this is asked."""
    try:
        work.reader.prove_hash(info, sha256)
    except ObjectMissing:
        _refuse_gone(work, state, info.key)
    except VerifyError:
        if kind != "delta" or info.size_bytes <= PART_BYTES:
            raise
        work.refused.append(info.key)


def _refuse_gone(work: Work, state: RunState, key: str) -> None:
    """What was listed and is not there any more was deleted meanwhile: by retention, or else it is wrong."""
    parts = keys.parse_key(work.run, key)
    spent = parts is not None and is_spent(state, work.planned, parts)
    if not (spent or may_be_gone(work, state, key)):
        raise VerifyError(key, "it was deleted meanwhile, and no gc entry names it")


def _verify_object(work: Work, state: RunState, info: ObjectInfo, parts: KeyParts) -> None:
    if parts.kind in ("delta", "update", "snapshot", "mean"):
        assert parts.sha256 is not None
        _prove_bytes(work, state, info, parts.kind, parts.sha256)
        return
    body = work.reader.find(info.key, MAX_SMALL_BYTES)
    if body is None:
        _refuse_gone(work, state, info.key)
        return
    if parts.kind == "manifest":
        prove_manifest(work, state, info.key, body)
    elif parts.kind == "command":
        checks.check_name(parts, body)
        decode_command(body, state.spec)
    elif parts.kind == "reduction":
        checks.check_name(parts, body)
        decode_reduction(body, work.run)
    elif parts.kind == "report":
        report = checks.check_report(state, parts, body)
        check_tail(state, work.told, info.key, parts)
        checks.check_report_facts(report, work.told.ended[report.round])
        work.reported.add(report.round)
    elif parts.kind == "conviction":
        work.heard.add(checks.check_conviction(state, parts, body))
    else:
        assert parts.kind == "lease", "spec and log were read before"
        checks.check_lease(state, body)
    work.reader.proved.add(info.key)
