"""A miner that hands in something else than its work, on order; everything else of it is the miner itself.

The word in the order file is read at each submission. What others have handed in is read from their state folders:
their operator is the same, or careless. An original counts once its bytes are in the storage, so a copy is always the
later one of the two.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import urllib3
from safetensors import safe_open

from common.codec.container import HEADER_BYTES, decode, encode
from common.codec.params import F32, CodecParams
from common.errors import Rejected
from common.merge.partition import PartitionMean
from common.records import Manifest, open_manifest
from common.spec import RunSpec

PATIENCE_S = 30.0
"""For the originals of a copy; then this round gets nothing."""
LOOK_S = 0.05
OF_OTHERS = {"copy": 1, "average": 2}
"""How many originals it takes."""


class Liar:
    """Replaces one function of this process's miner, depending on the order of the moment."""

    def __init__(self, orders: Path, bucket_url: str, victims: Sequence[Path]) -> None:
        """``bucket_url`` is the base of every key; ``victims`` are the state folders of whom to copy."""
        self._orders = orders
        self._bucket_url = bucket_url
        self._victims = tuple(victims)

    def order(self) -> str:
        """The present lie; nothing: honest work."""
        return self._orders.read_text().strip() if self._orders.exists() else ""

    def take_over(self) -> None:
        """From now on the miner's encoder is ours, and so are its put and its posts."""
        import miner.client
        import miner.delta
        import miner.means
        import miner.session
        import miner.uplink

        liar, build = self, miner.session.build

        def lying_build(spec: RunSpec, account: Any, mark: Any, round_id: Any, final: bool, signer: Any) -> Any:
            order = liar.order()
            if order not in OF_OTHERS or not final:
                return build(spec, account, mark, round_id, final, signer)
            others = liar._originals(spec, round_id, OF_OTHERS[order])
            miner.delta.encode = lambda target, params: _mean(others, len(target), params)
            try:
                return build(spec, account, mark, round_id, final, signer)
            finally:
                miner.delta.encode = liar._encode

        miner.session.build = lying_build  # type: ignore[assignment]
        miner.delta.encode = self._encode  # type: ignore[assignment]
        self._replace_reduce()
        self._replace_put(miner.uplink.Uplink)
        self._replace_posts(miner.client.ValidatorClient)

    def _encode(self, target: F32, params: CodecParams) -> bytes:
        order = self.order()
        if order == "nan":
            honest = encode(target, params)
            return honest[:HEADER_BYTES] + b"\xff" * (len(honest) - HEADER_BYTES)
        factor = {"scale": np.float32(100.0), "flip": np.float32(-1.0)}.get(order, np.float32(1.0))
        return encode(target * factor, params)

    def _replace_reduce(self) -> None:
        import miner.means

        reduce, liar = miner.means.reduce_partition, self

        def lying(*words: Any) -> PartitionMean:
            right = reduce(*words)
            wrong = right.values + np.float32(2.0**-10)
            return PartitionMean(wrong, right.inputs_sha256) if liar.order() == "mean" else right

        miner.means.reduce_partition = lying

    def _replace_put(self, uplink: Any) -> None:
        put_whole, liar = uplink._put_whole, self

        async def put(self: Any, target: Any, sent: Any, over: Any) -> None:
            if liar.order() != "missing":
                await put_whole(self, target, sent, over)

        uplink._put_whole = put

    def _replace_posts(self, client: Any) -> None:
        """Every submission and completion is said twice, and the second answer must be the first."""
        for name in ("submit", "complete"):
            setattr(client, name, self._twice(getattr(client, name)))

    def _twice(self, post: Any) -> Any:
        liar = self

        async def posted(self: Any, *words: Any) -> Any:
            reply = await post(self, *words)
            if liar.order() != "twice":
                return reply
            again = await post(self, *words)
            assert getattr(again, "receipt", None) == getattr(reply, "receipt", None), "two receipts for one manifest"
            return again

        return posted

    def _originals(self, spec: RunSpec, round_id: int, count: int) -> list[bytes]:
        """Final deltas of this round by others, once they are in the storage. Raises ``Rejected``."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            found = [one for folder in self._victims if (one := self._original(spec, folder, round_id)) is not None]
            if len(found) >= count:
                return found[:count]
            time.sleep(LOOK_S)
        raise Rejected("no_original", f"nothing to copy in round {round_id}")

    def _original(self, spec: RunSpec, folder: Path, round_id: int) -> bytes | None:
        for path in folder.glob(f"**/submission-{round_id:09d}-*.safetensors"):
            manifest, delta = _read(spec, path)
            if manifest is not None and manifest.final and self._is_there(manifest):
                return delta
        return None

    def _is_there(self, manifest: Manifest) -> bool:
        return urllib3.request("HEAD", f"{self._bucket_url}/{manifest.key}", retries=False).status == 200


def _read(spec: RunSpec, path: Path) -> tuple[Manifest | None, bytes]:
    try:
        with safe_open(path, framework="numpy") as file:
            manifest, _ = open_manifest(json.loads(file.metadata()["manifest"]), spec.run)
            return manifest, file.get_tensor("delta").tobytes()
    except FileNotFoundError:  # settled meanwhile
        return None, b""


def _mean(others: Sequence[bytes], count: int, params: CodecParams) -> bytes:
    if len(others) == 1:
        return others[0]
    values = [decode(other, expect=params, count=count) for other in others]
    return encode(np.mean(values, axis=0, dtype=np.float32), params)
