"""What a deal of a plan's partitions rests on: who may own some, what is read for them, and the duties that follow.

Invariants: whoever may own is known by what this process saw of it, not by its word; what is to be read is proved by
manifests whose deltas were checked, or by the deltas themselves.
"""

from __future__ import annotations

import hashlib

from common import keys
from common.codec.container import partition_hashes
from common.codec.params import delta_params
from common.merge.butterfly import Candidate, audited, place
from common.merge.networks import network_of
from common.merge.partition import inputs_sha256, slices_of
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.runlog.remerge import read_delta
from common.spec import RunSpec
from common.units import ShardId
from validator.board import Board
from validator.reducing import Deal, Place, Proof
from validator.rounds import Round


def candidates(board: Board, current: Round, plan: RoundFrozen) -> list[Candidate]:
    """Accepted members that live and have not handed in anything wrong lately."""
    now_s = board.now_s()
    coldkeys = current.judgement.coldkeys if current.judgement else {}
    found = {}
    for hotkey in sorted({member.hotkey for member in plan.members if member.decision == "accepted"}):
        member, seat = board.members.get(hotkey), board.membership.known(hotkey)
        coldkey = coldkeys.get(hotkey) or (seat.coldkey if seat else None)
        if member is None or coldkey is None or not board.members.is_live(member, now_s):
            continue
        if board.members.barred_until(hotkey) <= plan.round:
            network, asn = network_of(member.host), board.asns.asn_of(member.host)
            found[hotkey] = Candidate(hotkey, coldkey, network, asn)
    return list(found.values())


def unheard_senders(board: Board, plan: RoundFrozen) -> int:
    """Accepted members that a takeover counts as live, as long as their silence may last: by which network they
    come is not known, so that related owners would pass for strangers."""
    members, now_s = board.members, board.now_s()
    accepted = {member.hotkey for member in plan.members if member.decision == "accepted"}
    return sum(m.hotkey in accepted and m.beat is None and members.is_live(m, now_s) for m in members)


def proofs_of(board: Board, current: Round, plan: RoundFrozen) -> dict[ShardId, tuple[Proof, ...]]:
    """Blocking: what the accepted deltas' ranges have for hashes."""
    shards = sorted({member.shard for member in plan.members if member.decision == "accepted"})
    return {
        shard: tuple(_proof(board, current, member) for member in accepted_members(plan, shard)) for shard in shards
    }


def deal_of(
    spec: RunSpec,
    counts: dict[ShardId, int],
    seed: bytes,
    candidates: list[Candidate],
    proofs: dict[ShardId, tuple[Proof, ...]],
) -> Deal:
    """Everybody's duties. Pure. Partitions without a value are nobody's."""
    how, duties, sizes, inputs = spec.reduce, {}, {}, {}
    for shard, members in proofs.items():
        placed = place(seed, candidates, how.partitions, how.redundancy, shard)
        for duty, where in zip(placed, slices_of(spec, counts[shard]), strict=True):
            if where.mean_bytes:
                at = shard, duty.partition
                duties[at], sizes[at] = duty, where.mean_bytes
                inputs[at] = inputs_sha256((header, ranges[duty.partition]) for header, ranges in members)
    return Deal(seed, duties, sizes, inputs, proofs)


def drawn(spec: RunSpec, deal: Deal, chance: bytes) -> frozenset[Place]:
    """What is computed again though its copies agree: by ``chance`` that nobody knew before they were there. Pure."""
    return frozenset(
        (shard, partition)
        for shard in deal.proofs
        for partition in audited(
            hashlib.sha256(deal.seed + chance + f"shard {shard}".encode()).digest(),
            spec.reduce.partitions,
            spec.reduce.audits,
        )
    )


def _proof(board: Board, current: Round, member: PlanMember) -> Proof:
    spec, delta = board.spec, member.delta
    key = keys.delta_key(spec.run, member.round, member.shard, member.hotkey, delta.sha256)
    header = board.reader.header(key, sha256=delta.sha256, size_bytes=delta.size_bytes)
    known = current.submissions.find((member.round, member.shard, member.hotkey, delta.sha256))
    if known is not None and known.finding is not None and known.finding.ok:
        return header, known.manifest.partitions
    params, body = delta_params(spec.codec, member.base_revision), read_delta(board.reader, spec.run, member)
    return header, partition_hashes(body, board.counts()[member.shard], params, spec.reduce.partitions)
