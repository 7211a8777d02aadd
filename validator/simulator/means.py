"""The means of partitions in a simulated run: real bytes in the bucket, or names of them.

``BucketMeans`` is production's own arithmetic on the objects of the store in memory: ``reduce_partition`` makes a mean,
``gather`` compares and puts them together. ``NamedMeans`` knows only sizes and who has handed in what; the vectors are
merged as the leader alone would, which gives the same bits (the mean is elementwise).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from common import keys
from common.canonical import dumps
from common.codec.container import HEADER_BYTES, header, partition_hashes
from common.codec.params import delta_params
from common.errors import Rejected
from common.merge.partition import PartitionMean, Ranges, reduce_partition, require_inputs, slice_of, slices_of
from common.records import ObjectRef
from common.reductions import Copy, Reduction
from common.runlog.entries import PlanMember, RoundFrozen
from common.runlog.recompute import accepted_members
from common.runlog.remerge import read_delta
from common.store.reader import StoreReader
from common.typed import to_json
from common.units import Sha256, sha256_hex
from validator.bodies import RememberingReader
from validator.means import Handed, gather
from validator.means import Means as Gathered
from validator.reducing import Proof
from validator.simulator.bucket import BucketRecords
from validator.simulator.records import NO_TRACE, SHARD, Records

WRONG_BY = np.float32(0.25)
"""What owners who lie add to every value."""


class Means(Protocol):
    """What leader and owners do about means."""

    count: int
    """Values of the shard whose partitions are dealt."""

    def proofs(self, plan: RoundFrozen) -> tuple[Proof, ...]:
        """Of each accepted delta its header and the hashes of its ranges. Raises ``Rejected('no_members')``."""
        ...

    def make(self, plan: RoundFrozen, partition: int, inputs_sha256: Sha256, lies: bool) -> tuple[Copy, bytes]:
        """The mean of a partition, and its bytes; another one, if its owner ``lies``.

        Raises ``Rejected``, also when other bytes than ``inputs_sha256`` says were read.
        """
        ...

    def put(self, word: Reduction, copy: Copy, body: bytes) -> None:
        """A mean arrives in the bucket."""
        ...

    def there(self, word: Reduction, copy: Copy) -> bool:
        """Whether it lies there."""
        ...

    def keep(self, word: Reduction) -> Sha256:
        """The owner's word stays in the bucket; the hash of its object."""
        ...

    def gather(self, handed: Handed) -> Gathered | None:
        """The means of the plan from the owners' copies; None when the leader has to merge by itself."""
        ...


def means_of(records: Records, values: int, count: int) -> Means:
    """``values`` of the preset's model, ``count`` of the trained vector."""
    return BucketMeans(records, count) if isinstance(records, BucketRecords) else NamedMeans(records, values)


class BucketMeans:
    """Real objects."""

    def __init__(self, records: BucketRecords, count: int) -> None:
        self.count = count
        self._records = records
        self._reader = StoreReader(records.store)
        self._remembering = RememberingReader(self._reader)

    def proofs(self, plan: RoundFrozen) -> tuple[Proof, ...]:
        return tuple(self._proof(member) for member in accepted_members(plan, SHARD))

    def make(self, plan: RoundFrozen, partition: int, inputs_sha256: Sha256, lies: bool) -> tuple[Copy, bytes]:
        spec = self._records.spec
        where = slice_of(spec, self.count, partition)
        mean = reduce_partition(spec, plan, SHARD, partition, where, self._opened)
        require_inputs(mean, partition, inputs_sha256)
        if lies:
            mean = PartitionMean(mean.values + WRONG_BY, mean.inputs_sha256)
        return Copy(SHARD, partition, ObjectRef(mean.sha256, len(mean.body)), mean.inputs_sha256), mean.body

    def put(self, word: Reduction, copy: Copy, body: bytes) -> None:
        self._records.store.put(word.key_of(copy), body)

    def there(self, word: Reduction, copy: Copy) -> bool:
        info = self._records.store.head(word.key_of(copy))
        return info is not None and info.size_bytes == copy.mean.size_bytes

    def keep(self, word: Reduction) -> Sha256:
        return self._records.keep_word(word)

    def gather(self, handed: Handed) -> Gathered | None:
        try:
            return gather(self._records.spec, {SHARD: self.count}, handed, self._remembering)
        except Rejected:
            return None  # what the plan accepts can't be added up: the merge says so too

    def _opened(self, member: PlanMember) -> Ranges:
        """A member's header and the bytes of its ranges, as ``miner.reducer`` reads them."""
        spec, size = self._records.spec, member.delta.size_bytes
        key = keys.delta_key(spec.run, member.round, member.shard, member.hotkey, member.delta.sha256)
        read = partial(self._reader.fetch_range, key, size_bytes=size)
        head = read(start=0, end=HEADER_BYTES)
        return lambda start, end: (head, read(start=start, end=end))

    def _proof(self, member: PlanMember) -> Proof:
        spec = self._records.spec
        body = read_delta(self._remembering, spec.run, member)
        params = delta_params(spec.codec, member.base_revision)
        return body[:HEADER_BYTES], partition_hashes(body, self.count, params, spec.reduce.partitions)


class NamedMeans:
    """Names: every honest owner of a partition makes the same one."""

    def __init__(self, records: Records, values: int) -> None:
        self.count = values
        self._spec = records.state.spec
        self._slices = slices_of(self._spec, values)
        self._there: set[str] = set()
        self._round = -1

    def proofs(self, plan: RoundFrozen) -> tuple[Proof, ...]:
        if plan.round != self._round:  # nobody asks for the means of the one before
            self._round = plan.round
            self._there.clear()
        hashes = (NO_TRACE,) * self._spec.reduce.partitions
        codec, members = self._spec.codec, accepted_members(plan, SHARD)
        return tuple((header(self.count, delta_params(codec, m.base_revision), 0), hashes) for m in members)

    def make(self, plan: RoundFrozen, partition: int, inputs_sha256: Sha256, lies: bool) -> tuple[Copy, bytes]:
        name = sha256_hex(f"{plan.round} {inputs_sha256} {partition}{' wrong' if lies else ''}".encode())
        return Copy(SHARD, partition, ObjectRef(name, self._slices[partition].mean_bytes), inputs_sha256), b""

    def put(self, word: Reduction, copy: Copy, body: bytes) -> None:
        self._there.add(word.key_of(copy))

    def there(self, word: Reduction, copy: Copy) -> bool:
        return word.key_of(copy) in self._there

    def keep(self, word: Reduction) -> Sha256:
        """Facts keep no evidence, only a name for it."""
        return sha256_hex(dumps(to_json(word)))

    def gather(self, handed: Handed) -> Gathered | None:
        return None
