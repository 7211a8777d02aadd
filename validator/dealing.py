"""The facts that a deal of a plan's partitions rests on: who may own some, and what is read for them.

Invariants: whoever may own is known by what this process saw of it, not by its word; what is to be read is proved by
manifests whose deltas were checked, or by the deltas themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common import keys
from common.codec.container import partition_hashes
from common.codec.params import delta_params
from common.merge.butterfly import Candidate
from common.merge.partition import byte_range
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.runlog.remerge import read_delta
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, ShardId
from validator.board import Board
from validator.owners import candidates_of
from validator.reducing import Place, Proof
from validator.rounds import Round


def candidates(board: Board, current: Round, plan: RoundFrozen) -> list[Candidate]:
    """Who may own partitions, by the seats of the round's judgement, or those that are known now."""
    coldkeys = current.judgement.coldkeys if current.judgement else {}

    def coldkey_of(hotkey: Hotkey) -> Coldkey | None:
        seat = board.membership.known(hotkey)
        return coldkeys.get(hotkey) or (seat.coldkey if seat else None)

    return candidates_of(plan, board.members, coldkey_of, board.asns.asn_of, board.now_s())


def proofs_of(board: Board, current: Round, plan: RoundFrozen) -> dict[ShardId, tuple[Proof, ...]]:
    """Blocking: what the accepted deltas' ranges have for hashes."""
    shards = sorted({member.shard for member in plan.members if member.decision == "accepted"})
    return {
        shard: tuple(_proof(board, current, member) for member in accepted_members(plan, shard)) for shard in shards
    }


def read_bytes(spec: RunSpec, counts: Mapping[ShardId, int], plan: RoundFrozen, places: Iterable[Place]) -> int:
    """What an owner reads for the means of these places: their ranges of every accepted delta. Pure."""
    total = 0
    for shard, partition in places:
        for member in accepted_members(plan, shard):
            start, end = byte_range(spec, delta_params(spec.codec, member.base_revision), counts[shard], partition)
            total += end - start
    return total


def _proof(board: Board, current: Round, member: PlanMember) -> Proof:
    spec, delta = board.spec, member.delta
    key = keys.delta_key(spec.run, member.round, member.shard, member.hotkey, delta.sha256)
    header = board.reader.header(key, sha256=delta.sha256, size_bytes=delta.size_bytes)
    known = current.submissions.find((member.round, member.shard, member.hotkey, delta.sha256))
    if known is not None and known.finding is not None and known.finding.ok:
        return header, known.manifest.partitions
    params, body = delta_params(spec.codec, member.base_revision), read_delta(board.reader, spec.run, member)
    return header, partition_hashes(body, board.counts()[member.shard], params, spec.reduce.partitions)
