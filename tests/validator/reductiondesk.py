"""A leader whose partitions are dealt, behind a real HTTP server, and owners that speak to it as miners do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from common.auth import REPLY_SIGNATURE, check_reply, sign_request
from common.data.dataset import Dataset
from common.reductions import Reduction, sign_reduction
from common.spec import ReduceSpec
from common.typed import to_json
from common.units import ShardId
from common.wire import ErrorReply, ReduceView, ReductionReply, parse
from tests.support.specs import VALIDATOR
from tests.validator.butterflies import (
    Work,
    until_dealt,
    work,
)
from tests.validator.test_server import serving
from tests.validator.world import Miner, World
from validator.api.server import Server
from validator.process import Validator

PATH = "/v1/reductions"
MINERS = 3
EACH_ALL = ReduceSpec("butterfly", 3, 3, 0)
"""Of three miners each owns all of the three partitions."""


class Desk:
    """A leader whose partitions are dealt, behind a real server."""

    def __init__(self, world: World, validator: Validator, http: httpx.AsyncClient) -> None:
        self.world, self.validator, self.http = world, validator, http
        self.views: dict[int, ReduceView] = {}

    @property
    def miner(self) -> Miner:
        return self.world.miners[0]

    def work(self, number: int = 0) -> Work:
        return work(self.world, self.world.miners[number], self.views[number])

    async def post(self, body: bytes, number: int = 0, path: str = PATH) -> httpx.Response:
        """Sent by miner ``number``, never faster than a hotkey may. The signature of the answer is checked."""
        self.world.clock.advance(0.2)
        signer = self.world.miners[number].signer
        headers = sign_request(signer, "POST", path, body, VALIDATOR.hotkey, self.world.clock.wall_ns())
        reply = await self.http.post(path, content=body, headers=headers)
        nonce = headers["X-Bittensor-Nonce"]
        check_reply(VALIDATOR.hotkey, nonce, reply.status_code, reply.content, reply.headers[REPLY_SIGNATURE])
        return reply

    async def tell(self, word: Reduction, number: int = 0) -> httpx.Response:
        """A word that its miner signs anew."""
        return await self.post(signed(word, self.world.miners[number]), number)

    def put(self, reply: ReductionReply, made: Work) -> None:
        for target in reply.uploads:
            body = made.bodies[ShardId(target.shard), target.partition]
            self.world.store.redeem_put(target.upload.url, target.upload.headers, body)

    async def keep_leading(self) -> None:
        await self.validator.board.leadership.renew()


def signed(word: Reduction, miner: Miner) -> bytes:
    return json.dumps({"reduction": sign_reduction(word, miner.signer).to_json()}).encode()


def accepted(reply: httpx.Response) -> ReductionReply:
    assert reply.status_code == 200, reply.text
    return parse(ReductionReply, reply.content)


def refused(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, parse(ErrorReply, reply.content).code


@contextlib.asynccontextmanager
async def served(dataset: Dataset, how: ReduceSpec, until: int = 1) -> AsyncIterator[Desk]:
    world = World(dataset, reduce=how)
    await world.begin(MINERS)
    validator = world.validator(until=until)
    async with (
        serving(server=Server(validator.app)) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as http,
    ):
        yield Desk(world, validator, http)


@contextlib.asynccontextmanager
async def dealt(dataset: Dataset, how: ReduceSpec = EACH_ALL, until: int = 1) -> AsyncIterator[Desk]:
    async with served(dataset, how, until) as desk:
        desk.views = await until_dealt(desk.world, desk.validator)
        yield desk


def as_body(word: Reduction) -> dict[str, Any]:
    body = to_json(word)
    assert isinstance(body, dict)
    return body
