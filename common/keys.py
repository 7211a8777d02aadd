"""The bucket's layout: every key that Brigade reads or writes is made and parsed here, and nowhere else.

Keys of content hold its SHA-256, so a key is never put twice with different bytes; but for the lease and the objects
of probes, which are nobody's evidence. All keys are relative to the bucket's prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from common.units import Hotkey, Revision, RoundId, Sha256, ShardId

LOG_DIGITS = 12


def public_base_url(endpoint: str, bucket: str, prefix: str) -> str:
    """Where objects are read by plain GET, path-style: the base of every key, without a trailing slash."""
    return "/".join(part for part in (endpoint, bucket, prefix) if part)


def run_prefix(run: str) -> str:
    return f"runs/{run}/"


def spec_key(run: str) -> str:
    return f"runs/{run}/spec.json"


def log_key(run: str, seq: int) -> str:
    return f"runs/{run}/log/{seq:0{LOG_DIGITS}d}.json"


def lease_key(run: str) -> str:
    return f"runs/{run}/lease.json"


def round_prefix(run: str, round_id: RoundId) -> str:
    return f"runs/{run}/rounds/{round_id}/"


def delta_key(run: str, round_id: RoundId, shard: ShardId, hotkey: Hotkey, sha256: Sha256) -> str:
    return f"runs/{run}/rounds/{round_id}/{shard}/{hotkey}/{sha256}.delta"


def manifest_key(run: str, round_id: RoundId, shard: ShardId, hotkey: Hotkey, sha256: Sha256) -> str:
    """The manifest stands beside its delta and is named by the delta's hash."""
    return f"runs/{run}/rounds/{round_id}/{shard}/{hotkey}/{sha256}.json"


def update_key(run: str, round_id: RoundId, shard: ShardId, sha256: Sha256) -> str:
    return f"runs/{run}/rounds/{round_id}/{shard}/updates/{sha256}.update"


def mean_key(run: str, round_id: RoundId, shard: ShardId, partition: int, hotkey: Hotkey, sha256: Sha256) -> str:
    """An owner's copy of the mean of a partition."""
    return f"runs/{run}/rounds/{round_id}/{shard}/means/{partition}/{hotkey}/{sha256}.mean"


def reduction_key(run: str, round_id: RoundId, hotkey: Hotkey, sha256: Sha256) -> str:
    """An owner's signed word for its copies; ``sha256`` is that of the object's bytes."""
    return f"runs/{run}/rounds/{round_id}/reductions/{hotkey}/{sha256}.json"


def reductions_prefix(run: str, round_id: RoundId) -> str:
    """Where the owners' words of a round lie."""
    return f"runs/{run}/rounds/{round_id}/reductions/"


def revision_prefix(run: str, revision: Revision) -> str:
    return f"runs/{run}/revisions/{revision}/"


def snapshot_key(run: str, revision: Revision, shard: ShardId, sha256: Sha256) -> str:
    return f"runs/{run}/revisions/{revision}/{shard}/{sha256}.safetensors"


def commands_prefix(run: str) -> str:
    return f"runs/{run}/commands/"


def command_key(run: str, sha256: Sha256) -> str:
    """``sha256`` is that of the object's bytes."""
    return f"{commands_prefix(run)}{sha256}.json"


def reports_prefix(run: str, validator: Hotkey) -> str:
    return f"runs/{run}/reports/{validator}/"


def report_key(run: str, validator: Hotkey, round_id: RoundId, sha256: Sha256) -> str:
    """``sha256`` is that of the object's bytes."""
    return f"runs/{run}/reports/{validator}/{round_id}-{sha256}.json"


def conviction_key(run: str, validator: Hotkey, round_id: RoundId, sha256: Sha256) -> str:
    """Among its reports; ``sha256`` is that of the object's bytes."""
    return f"runs/{run}/reports/{validator}/{round_id}-{sha256}.conviction.json"


def probe_key(run: str, hotkey: Hotkey, way: Literal["up", "down"]) -> str:
    """What probes of a miner's link transfer. Two objects for each hotkey that was ever probed, overwritten by every
    probe: no part of the truth and of no revision, so that nothing reads, copies or proves them afterwards."""
    return f"runs/{run}/probes/{hotkey}/{way}"


def dataset_prefix(dataset: Sha256) -> str:
    return f"data/{dataset}/"


def dataset_index_key(dataset: Sha256) -> str:
    return f"data/{dataset}/index.json"


def dataset_file_key(dataset: Sha256, sha256: Sha256) -> str:
    return f"data/{dataset}/{sha256}.tokens"


def is_hotkey(text: str) -> bool:
    """Whether a text has the form of a hotkey's address; whose it is no form can tell."""
    return re.fullmatch(_HOTKEY, text) is not None


@dataclass(frozen=True)
class KeyParts:
    """What a key under ``runs/<run>/`` says about its object."""

    kind: str
    """spec, lease, log, command, delta, manifest, update, mean, reduction, snapshot, report, conviction or probe."""
    sha256: Sha256 | None = None
    """Hash in the name: of the bytes, or for a manifest of its delta's."""
    seq: int | None = None
    round_id: RoundId | None = None
    revision: Revision | None = None
    shard: ShardId | None = None
    hotkey: Hotkey | None = None
    partition: int | None = None


_HASH = r"(?P<sha256>[0-9a-f]{64})"
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_HOTKEY = r"(?P<hotkey>[1-9A-HJ-NP-Za-km-z]{46,50})"
_PATTERNS = {
    "spec": r"spec\.json",
    "lease": r"lease\.json",
    "log": rf"log/(?P<seq>[0-9]{{{LOG_DIGITS}}})\.json",
    "command": rf"commands/{_HASH}\.json",
    "update": rf"rounds/(?P<round>{_NUMBER})/(?P<shard>{_NUMBER})/updates/{_HASH}\.update",
    "delta": rf"rounds/(?P<round>{_NUMBER})/(?P<shard>{_NUMBER})/{_HOTKEY}/{_HASH}\.delta",
    "manifest": rf"rounds/(?P<round>{_NUMBER})/(?P<shard>{_NUMBER})/{_HOTKEY}/{_HASH}\.json",
    "mean": rf"rounds/(?P<round>{_NUMBER})/(?P<shard>{_NUMBER})/means/(?P<partition>{_NUMBER})/{_HOTKEY}/{_HASH}\.mean",
    "reduction": rf"rounds/(?P<round>{_NUMBER})/reductions/{_HOTKEY}/{_HASH}\.json",
    "snapshot": rf"revisions/(?P<revision>{_NUMBER})/(?P<shard>{_NUMBER})/{_HASH}\.safetensors",
    "report": rf"reports/{_HOTKEY}/(?P<round>{_NUMBER})-{_HASH}\.json",
    "conviction": rf"reports/{_HOTKEY}/(?P<round>{_NUMBER})-{_HASH}\.conviction\.json",
    "probe": rf"probes/{_HOTKEY}/(?:up|down)",
}
_COMPILED = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}


def parse_key(run: str, key: str) -> KeyParts | None:
    """What ``key`` names, or None if it is not a key of this run's layout."""
    prefix = run_prefix(run)
    if not key.startswith(prefix):
        return None
    for kind, pattern in _COMPILED.items():
        match = pattern.fullmatch(key, len(prefix))
        if match:
            return _parts(kind, match.groupdict())
    return None


def _parts(kind: str, found: dict[str, str]) -> KeyParts:
    def number(name: str) -> int | None:
        return int(found[name]) if name in found else None

    round_id, revision, shard = number("round"), number("revision"), number("shard")
    return KeyParts(
        kind=kind,
        sha256=Sha256(found["sha256"]) if "sha256" in found else None,
        seq=number("seq"),
        round_id=None if round_id is None else RoundId(round_id),
        revision=None if revision is None else Revision(revision),
        shard=None if shard is None else ShardId(shard),
        hotkey=Hotkey(found["hotkey"]) if "hotkey" in found else None,
        partition=number("partition"),
    )
