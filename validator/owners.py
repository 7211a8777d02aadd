"""What a leader decides about the owners of a plan's partitions, on facts alone: who may own some, whose duty is
what, and what the leader goes by when it stops waiting. Pure; the validator and the simulator ask the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from common.merge.butterfly import Candidate, audited, place
from common.merge.networks import network_of
from common.merge.partition import inputs_sha256, slices_of
from common.runlog.entries import RoundFrozen
from common.runlog.state import OpenRound
from common.spec import RunSpec
from common.units import Coldkey, Hotkey, ShardId
from validator.means import Handed
from validator.members import Members
from validator.reducing import Deal, Place, Proof, Reducing


def accepted_hotkeys(plan: RoundFrozen) -> list[Hotkey]:
    """Whose work a plan accepts, in order."""
    return sorted({member.hotkey for member in plan.members if member.decision == "accepted"})


def candidates_of(
    plan: RoundFrozen,
    members: Members,
    coldkey_of: Callable[[Hotkey], Coldkey | None],
    asn_of: Callable[[str], int | None],
    now_s: float,
) -> list[Candidate]:
    """Accepted members that live and may have duties.

    ``coldkey_of`` a hotkey, None: it has no seat; ``asn_of`` an address, None: it is not known.
    """
    found = []
    for hotkey in accepted_hotkeys(plan):
        member, coldkey = members.get(hotkey), coldkey_of(hotkey)
        if member is None or coldkey is None or not members.is_live(member, now_s):
            continue
        if members.bars.may_reduce(hotkey, plan.round):
            found.append(Candidate(hotkey, coldkey, network_of(member.host), asn_of(member.host)))
    return found


def unheard_senders(members: Members, plan: RoundFrozen, now_s: float) -> int:
    """Accepted members that a takeover counts as live, as long as their silence may last: by which network they
    come is not known, so that related owners would pass for strangers."""
    known = (members.get(hotkey) for hotkey in accepted_hotkeys(plan))
    return sum(m is not None and m.beat is None and members.is_live(m, now_s) for m in known)


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


def handed_in(
    spec: RunSpec, reducing: Reducing | None, opened: OpenRound, entropy: Callable[[], bytes]
) -> Handed | None:
    """What the owners have handed in of a round's plan, with what is computed again drawn by ``entropy``; None: there
    is nothing, and the leader merges alone."""
    if reducing is None or opened.plan is None or not reducing.reduces(opened):
        return None
    copies = reducing.copies()
    if reducing.deal is None or not copies:
        return None
    return Handed(opened.plan, reducing.deal, copies, drawn(spec, reducing.deal, entropy()))
