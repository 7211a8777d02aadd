"""The chain port on the Bittensor SDK 11: the only module that imports its client.

The SDK reports refusals as results, as raised ChainErrors, and version skew as plain ValueErrors; here they become
our three kinds. Every call has a timeout, and a connection that failed is thrown away, so that the next call dials
anew: a restarted node needs nothing from us. The SDK never resubmits a transaction whose fate it doesn't know, and
neither do we: ``Retryable`` asks the caller to read the chain first.

u16 weights go through the raw call, because the SDK's SetWeights rescales; only a subnet with commit-reveal on takes
the SDK's way, since the encryption is its.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import bittensor as bt
from bittensor.metagraph import fetch as fetch_metagraph
from bittensor.settings import resolve_endpoint
from loguru import logger

from common import timeouts
from common.chain.port import (
    MAX_COMMITMENT_FIELD_BYTES,
    MAX_COMMITMENT_FIELDS,
    Endpoint,
    Hyperparameters,
    Metagraph,
    check_endpoint,
    rao,
)
from common.chain.sdk_decode import neuron, raw_fields, seconds
from common.chain.wallets import DevWallet, Wallet
from common.chain.weights import check_vector
from common.errors import BrigadeError, Fatal, OperatorError, Rejected, Retryable
from common.units import Coldkey, Hotkey, Uid

T = TypeVar("T")
SDK_FILES = {  # variable → what the SDK would otherwise keep in the home folder
    "BITTENSOR_RUNTIME_CACHE_DIR": "runtime-cache",
    "BTCLI_CONFIG": "btcli.json",
    "BTCLI_PROXIES_PATH": "proxies.json",
    "BTCLI_ADDRESSES_PATH": "addresses.json",
    "BTCLI_MULTISIGS_PATH": "multisigs.json",
    "BTCLI_MULTISIG_CACHE": "multisig-cache.json",
    "BTCLI_SUBNET_NAMES_CACHE": "subnet-names.json",
    "BTCLI_TOKEN_SYMBOLS_CACHE": "token-symbols.json",
}
POOL_RACES = frozenset(
    {"Stale", "Future", "PriorityTooLow", "AlreadyImported", "Dropped", "Usurped", "Retracted", "Invalid"}
    | {"FinalityTimeout"}
)


def sdk_environment(folder: Path) -> dict[str, str]:
    """The variables that make the SDK (and btcli) of a process keep its files in ``folder``."""
    return {variable: str(folder / name) for variable, name in SDK_FILES.items()}


def isolate_sdk(folder: Path) -> None:
    """Let the SDK of this process keep its files in ``folder`` and not in the home folder."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(sdk_environment(folder))


class SdkChain:
    """A ``ChainPort`` on one endpoint (``ws://…`` or a network name). Belongs to one event loop."""

    def __init__(
        self, url: str, wallet: Wallet | DevWallet | None = None, *, timeout_s: float = timeouts.CHAIN_CALL_S
    ) -> None:
        """``OperatorError`` for what is neither a URL nor a network that the SDK knows."""
        try:
            resolve_endpoint(url)
        except ValueError as error:
            raise OperatorError(str(error)) from None
        self.url = url
        self._wallet = wallet
        self._timeout_s = timeout_s
        self._client: bt.Client | None = None
        self._dial: asyncio.Task[bt.Client] | None = None
        self._writing = asyncio.Lock()

    # -- connection ------------------------------------------------------------------------------------------

    async def _connected(self) -> bt.Client:
        """The open client. A dial goes on by itself when a caller gives up: the SDK can't take one back."""
        if self._client is not None and _has_given_up(self._client):
            await self._drop()
        if self._client is None:
            if self._dial is None:
                self._dial = asyncio.create_task(self._open())
                self._dial.add_done_callback(_retrieve)
            return await asyncio.shield(self._dial)
        return self._client

    async def _open(self) -> bt.Client:
        try:
            client = bt.Client(self.url)
            await client.connect()
            self._client = client
            return client
        finally:
            self._dial = None

    async def _drop(self) -> None:
        """Let go of a connection that failed."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError, bt.BittensorError, OSError):
                await asyncio.wait_for(client.close(), timeouts.CHAIN_CLOSE_S)

    async def close(self) -> None:
        """See ``ChainPort``."""
        if self._dial is not None:
            await asyncio.wait({self._dial}, timeout=timeouts.CHAIN_CLOSE_S)
        await self._drop()

    async def _run(self, work: Callable[[bt.Client], Awaitable[T]], unsure: str = "") -> T:
        """Do ``work`` within the timeout, with whatever goes wrong translated. ``unsure`` is added for writes."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work(await self._connected())
        except TimeoutError:
            await self._drop()
            raise Retryable(f"no answer from the chain at {self.url} in {self._timeout_s:g} s{unsure}") from None
        except (bt.RpcConnectionError, bt.ConnectionNotReady, OSError) as error:
            await self._drop()
            wait_s = seconds(getattr(error, "retry_after", None))
            raise Retryable(f"no connection to the chain at {self.url}: {error}{unsure}", wait_s) from None
        except bt.ChainError as error:
            if not _is_refusal(error):
                await self._drop()
            raise _translated(error, unsure) from None
        except bt.BittensorError as error:
            raise Rejected("invalid_argument", str(error)) from None
        except ValueError as error:
            raise _value_error(error) from None

    # -- reads -----------------------------------------------------------------------------------------------

    async def block(self) -> int:
        """See ``ChainPort``."""
        return await self._run(lambda client: client.block())

    async def block_time_s(self) -> float:
        """See ``ChainPort``."""
        return (await self._run(lambda client: client.timestamp())).timestamp()

    async def finalized_hash(self, number: int) -> str | None:
        """See ``ChainPort``."""

        async def read(client: bt.Client) -> str | None:
            return await client._substrate.block_hash(number) if await client.finalized_block() >= number else None

        return await self._run(read)

    async def genesis_hash(self) -> str:
        """See ``ChainPort``."""
        # Not block_info(0), which would fetch the metadata of the chain's first runtime.
        return await self._run(lambda client: client._substrate.block_hash(0))

    async def metagraph(self, netuid: int) -> Metagraph:
        """See ``ChainPort``."""
        graph = await self._run(lambda client: fetch_metagraph(client, netuid, commitments=False))
        if graph is None:
            raise self._no_subnet(netuid)
        return Metagraph(netuid, graph.block, tuple(neuron(row) for row in graph.neurons))

    async def subnet_owner_hotkey(self, netuid: int) -> Hotkey:
        """See ``ChainPort``."""

        async def read(client: bt.Client) -> tuple[bool, str]:
            exists = await client.query(("SubtensorModule", "NetworksAdded"), [netuid])
            return bool(exists), str(await client.query(("SubtensorModule", "SubnetOwnerHotkey"), [netuid]))

        exists, hotkey = await self._run(read)
        if not exists:
            raise self._no_subnet(netuid)
        return Hotkey(hotkey)

    async def hyperparameters(self, netuid: int) -> Hyperparameters:
        """See ``ChainPort``."""
        items = ("Tempo", "WeightsSetRateLimit", "WeightsVersionKey", "MinAllowedWeights", "MaxWeightsLimit")

        async def read(client: bt.Client) -> list[Any]:
            view = await client.at()
            names = (*items, "CommitRevealWeightsEnabled", "NetworksAdded")
            return await asyncio.gather(*(view.query(("SubtensorModule", name), [netuid]) for name in names))

        tempo, rate_limit, version_key, min_weights, max_weight, commit_reveal, exists = await self._run(read)
        if not exists:
            raise self._no_subnet(netuid)
        numbers = (int(tempo), int(rate_limit), int(version_key), int(min_weights), int(max_weight))
        return Hyperparameters(*numbers, commit_reveal=bool(commit_reveal))

    async def commitment(self, netuid: int, hotkey: Hotkey) -> tuple[bytes, ...] | None:
        """See ``ChainPort``."""
        record = await self._run(lambda client: client.query(("Commitments", "CommitmentOf"), [netuid, hotkey]))
        return None if record is None else raw_fields(record)

    async def weights(self, netuid: int) -> dict[Uid, dict[Uid, int]]:
        """See ``ChainPort``."""
        rows = await self._run(lambda client: client.query_map(("SubtensorModule", "Weights"), [netuid]))
        return {Uid(int(uid)): {Uid(int(to)): int(value) for to, value in row} for uid, row in sorted(rows)}

    async def blocks_since_epoch(self, netuid: int) -> int:
        """See ``ChainPort``."""

        async def read(client: bt.Client) -> int:
            view = await client.at()
            return int(view.block) - int(await view.query(("SubtensorModule", "LastEpochBlock"), [netuid]) or 0)

        return await self._run(read)

    async def next_epoch_block(self, netuid: int) -> int:
        """See ``ChainPort``."""
        block = await self._run(lambda client: client.read("next_epoch_start_block", netuid=netuid))
        if block is None:
            raise Rejected("disabled", f"subnet {netuid} has tempo 0 and never runs an epoch")
        return int(block)

    async def balance_rao(self, coldkey: Coldkey) -> int:
        """See ``ChainPort``."""
        account = await self._run(lambda client: client.query(("System", "Account"), [coldkey]))
        return int(account["data"]["free"])

    async def wait_for_block(self, number: int, timeout_s: float) -> int:
        """See ``ChainPort``. Dials again when the node goes away meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        client = await self._connected()
                        return int((await client.wait_for_block(number)).number)
                    except (bt.RpcConnectionError, bt.ConnectionNotReady, bt.ChainError, OSError) as error:
                        logger.debug("waiting for block {}: {}", number, error)
                        await self._drop()
                        await asyncio.sleep(timeouts.RETRY_FIRST_S)
        except TimeoutError:
            raise Retryable(f"the chain at {self.url} did not reach block {number} in {timeout_s:g} s") from None

    # -- writes ----------------------------------------------------------------------------------------------

    async def set_commitment(self, netuid: int, fields: Sequence[bytes]) -> None:
        """See ``ChainPort``."""
        sizes = [len(field) for field in fields]
        if not 1 <= len(sizes) <= MAX_COMMITMENT_FIELDS or max(sizes) > MAX_COMMITMENT_FIELD_BYTES:
            raise Rejected("invalid_argument", f"a commitment has 1 to 3 fields of at most 128 bytes, not {sizes}")
        info = {"fields": [[{f"Raw{len(field)}": "0x" + field.hex()} for field in fields]]}
        await self._submit(bt.calls.Commitments.set_commitment(netuid=netuid, info=info), "hotkey")

    async def serve(self, netuid: int, endpoint: Endpoint) -> None:
        """See ``ChainPort``."""
        check_endpoint(endpoint)
        await self._execute(lambda: bt.ServeAxon(netuid=netuid, ip=endpoint.ip, port=endpoint.port))

    async def set_weights(self, netuid: int, weights: Mapping[Uid, int], version_key: int) -> None:
        """See ``ChainPort``."""
        check_vector(weights)
        if (await self.hyperparameters(netuid)).commit_reveal:
            floats = {int(uid): float(value) for uid, value in weights.items()}
            await self._execute(lambda: bt.SetWeights(netuid=netuid, weights=floats, version_key=version_key))
            return
        vector = {"dests": [int(uid) for uid in weights], "weights": [int(value) for value in weights.values()]}
        call = bt.calls.SubtensorModule.set_mechanism_weights(netuid=netuid, mecid=0, version_key=version_key, **vector)
        try:
            await self._submit(call, "hotkey")
        except Fatal:  # a runtime from before mechanisms
            call = bt.calls.SubtensorModule.set_weights(netuid=netuid, version_key=version_key, **vector)
            await self._submit(call, "hotkey")

    async def register_subnet(self) -> int:
        """See ``ChainPort``."""
        result = await self._execute(bt.RegisterSubnet)
        return int(result.data["netuid"])

    async def start_subnet(self, netuid: int) -> None:
        """See ``ChainPort``."""
        await self._submit(bt.calls.SubtensorModule.start_call(netuid=netuid), "coldkey")

    async def register(self, netuid: int) -> None:
        """See ``ChainPort``. Shielded where the chain has a shield key, in the clear where it has none."""
        try:
            shield_key = await self._run(lambda client: client.query(("MevShield", "NextKey")))
        except Fatal:
            shield_key = None
        if shield_key:
            await self._execute(lambda: bt.BurnedRegister(netuid=netuid))
            return
        hotkey = self._signing().hotkey_ss58
        await self._submit(bt.calls.SubtensorModule.burned_register(netuid=netuid, hotkey=hotkey), "coldkey")

    async def add_stake(self, netuid: int, hotkey: Hotkey, amount_tao: float) -> None:
        """See ``ChainPort``."""
        call = bt.calls.SubtensorModule.add_stake(hotkey=hotkey, netuid=netuid, amount_staked=rao(amount_tao))
        await self._submit(call, "coldkey")

    async def transfer(self, dest: Coldkey, amount_tao: float) -> None:
        """See ``ChainPort``."""
        await self._submit(bt.calls.Balances.transfer_keep_alive(dest=dest, value=rao(amount_tao)), "coldkey")

    async def set_hyperparameters(
        self,
        netuid: int,
        *,
        tempo: int | None = None,
        weights_rate_limit_blocks: int | None = None,
        commit_reveal: bool | None = None,
        serving_rate_limit_blocks: int | None = None,
        stake_threshold_rao: int | None = None,
    ) -> None:
        """See ``ChainPort``."""
        admin, net = bt.calls.AdminUtils, {"netuid": netuid}
        wanted: list[tuple[Any, Callable[[Any], Any]]] = [
            (tempo, lambda v: admin.sudo_set_tempo(tempo=v, **net)),
            (
                weights_rate_limit_blocks,
                lambda v: admin.sudo_set_weights_set_rate_limit(weights_set_rate_limit=v, **net),
            ),
            (commit_reveal, lambda v: admin.sudo_set_commit_reveal_weights_enabled(enabled=v, **net)),
            (serving_rate_limit_blocks, lambda v: admin.sudo_set_serving_rate_limit(serving_rate_limit=v, **net)),
            (stake_threshold_rao, lambda v: admin.sudo_set_stake_threshold(min_stake=v)),
        ]
        calls = [make(value) for value, make in wanted if value is not None]
        if calls:
            await self._sudo(calls)

    async def _sudo(self, calls: list[Any]) -> None:
        async def compose(client: bt.Client) -> Any:
            composer: Any = client  # its compose has no types
            inner = [await composer.compose(call) for call in calls]
            return await composer.compose(bt.calls.Utility.batch_all(calls=inner))

        await self._submit(bt.calls.Sudo.sudo(call=await self._run(compose)), "coldkey")

    def _no_subnet(self, netuid: int) -> Rejected:
        return Rejected("subnet_not_exists", f"SubnetNotExists: there is no subnet {netuid} on {self.url}")

    def _signing(self) -> Wallet | DevWallet:
        if self._wallet is None:
            raise Rejected("not_authorized", "this connection has no wallet to sign with")
        return self._wallet

    async def _submit(self, call: Any, signer: str) -> Any:
        wallet = self._signing()
        return await self._write(
            lambda client: client.submit_call(call, wallet, signer=signer, wait_for_finalization=False)
        )

    async def _execute(self, intent: Callable[[], Any]) -> Any:
        wallet = self._signing()
        return await self._write(lambda client: client.execute(intent(), wallet, wait_for_finalization=False))

    async def _write(self, work: Callable[[bt.Client], Awaitable[Any]]) -> Any:
        """One write at a time: nonces are taken in order. Returns the successful result."""
        unsure = "; it may have been included: read the chain before repeating it"
        async with self._writing:
            result = await self._run(work, unsure)
        if not result.success:
            error = result.error or bt.ChainError(result.message)
            if not _is_refusal(error):
                await self._drop()
            raise _translated(error, unsure)
        return result


# -- translations ------------------------------------------------------------------------------------------------


def _retrieve(dial: asyncio.Task[bt.Client]) -> None:
    """Take note of a dial's failure, so that asyncio doesn't complain when nobody waits for it any more."""
    if not dial.cancelled():
        dial.exception()


def _has_given_up(client: bt.Client) -> bool:
    """Whether the SDK's session lost its connection while nobody asked, and its task for it has ended.

    The session would begin a new one by itself and leave the old one's failure to nobody, which asyncio complains of;
    closing the client takes note of it.
    """
    substrate: Any = client._substrate
    supervisor = substrate._substrate._session._supervisor
    return supervisor is not None and supervisor.done()


def _is_refusal(error: bt.ChainError) -> bool:
    """Whether the chain said no, rather than the connection failing or the pool being in a race."""
    if error.name in POOL_RACES:
        return False
    return error.name is not None or error.code is not bt.ErrorCode.UNKNOWN


def _translated(error: bt.ChainError, unsure: str) -> BrigadeError:
    if not _is_refusal(error):
        return Retryable(f"the chain gave no verdict: {error.name or error.message}{unsure}")
    text = f"{error.name}: {error.message}" if error.name else error.message
    return Rejected(str(error.code.value), text)


def _value_error(error: ValueError) -> BrigadeError:
    """The SDK raises ValueErrors for names that the runtime lacks and for arguments that don't encode."""
    if any(sign in str(error) for sign in ("not found", "missing call param")):
        return Fatal(f"the chain's runtime does not fit the Bittensor SDK {bt.__version__} ({error}): update brigade")
    return Rejected("invalid_argument", str(error))
