"""The first block: dev accounts with money, Alice as sudo, the root network and one subnet, as localnet has them.

The identity of a chain is a random seed in its folder: the genesis hash comes from it and from the metadata, so that
two local chains never share a hash, and no client mixes up what it cached.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from bittensor_core import Keypair

from common.chain.local.journal import BlockRecord
from common.chain.local.metadata import RuntimeMetadata
from common.chain.local.pallets.balances import credit
from common.chain.local.pallets.commitments import DEFAULT_MAX_SPACE_BYTES
from common.chain.local.pallets.registration import ROOT, add_subnet
from common.chain.local.runtime import ChainRuntime
from common.chain.local.state import MutableState
from common.chain.local.storage import Overlay, Storage
from common.errors import OperatorError, SetupError
from common.files import write_atomically

DEV_ACCOUNTS = ("//Alice", "//Bob", "//Charlie", "//Dave", "//Eve", "//Ferdie")
SUDO_ACCOUNT = "//Alice"
DEV_BALANCE_RAO = 1_000_000 * 10**9
DEFAULT_BLOCK_TIME_S = 0.25
FIRST_SUBNET_TEMPO = 100
FORMAT = 1
SEED_BYTES = 32


@dataclass(frozen=True)
class ChainIdentity:
    """What a chain is for ever. Kept in ``identity.json``."""

    format: int
    seed: str  # hex
    genesis_ms: int
    block_time_s: float
    spec_version: int

    def genesis_hash(self, metadata: RuntimeMetadata) -> bytes:
        """The hash of block 0."""
        return blake2b(bytes.fromhex(self.seed) + metadata.v15, digest_size=32, person=b"brigade-genesis").digest()


def open_identity(
    folder: Path, block_time_s: float | None, spec_version: int, now_ms: int, seed: bytes
) -> ChainIdentity:
    """The identity kept in ``folder``, or a new one made of ``seed``.

    ``OperatorError`` when ``block_time_s`` is given and differs: the block clock can't change under a chain.
    """
    path = folder / "identity.json"
    if path.exists():
        identity = _load(path)
        if block_time_s is not None and block_time_s != identity.block_time_s:
            raise OperatorError(
                f"the chain in {folder} has a block time of {identity.block_time_s} s: use that, or another folder"
            )
        if identity.spec_version != spec_version:
            raise SetupError(f"the chain in {folder} was made for another runtime: use another folder")
        return identity
    identity = ChainIdentity(FORMAT, seed.hex(), now_ms, block_time_s or DEFAULT_BLOCK_TIME_S, spec_version)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(identity), indent=2).encode())
    return identity


def _load(path: Path) -> ChainIdentity:
    try:
        identity = ChainIdentity(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise SetupError(f"{path} is damaged ({error}): use another folder") from None
    if identity.format != FORMAT:
        raise SetupError(f"{path} was written by another version of Brigade: update brigade, or use another folder")
    return identity


def genesis_record(runtime: ChainRuntime) -> BlockRecord:
    """The state of block 0; the same for every chain."""
    overlay = Overlay(Storage())
    state = MutableState(runtime, overlay, block=0)
    for uri in DEV_ACCOUNTS:
        credit(state, Keypair.create_from_uri(uri).ss58_address, DEV_BALANCE_RAO)
    issued_rao = DEV_BALANCE_RAO * len(DEV_ACCOUNTS)
    for item, value in {
        "Sudo.Key": Keypair.create_from_uri(SUDO_ACCOUNT).ss58_address,
        "Balances.TotalIssuance": issued_rao,
        "TotalIssuance": issued_rao,
        "Commitments.MaxSpace": DEFAULT_MAX_SPACE_BYTES,
        "NetworkRateLimit": 0,
    }.items():
        state.put(item, value=value)
    add_subnet(state, ROOT, tempo=FIRST_SUBNET_TEMPO)
    add_subnet(state, 1, tempo=FIRST_SUBNET_TEMPO)
    return BlockRecord(0, bytes(24), (), b"\x00", overlay.changes)
