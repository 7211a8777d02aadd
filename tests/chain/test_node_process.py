"""The local chain as a process: it survives being killed, ends cleanly, and keeps out of the home folder."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.chain.local.metadata import RuntimeMetadata
from common.chain.local.process import run_node
from common.chain.port import Endpoint
from common.chain.sdk import SdkChain, sdk_environment
from common.cli import run as brigade
from common.errors import BrigadeError, OperatorError, Retryable
from common.units import Uid
from tests.chain.support import BLOCK_TIME_S, REPOSITORY, Bench, ChainProcess, async_test, cache_dir, sdk_bench

WAIT_S = 120.0  # a guard against hanging; nothing here takes long on an idle machine


@pytest.fixture
def chain(tmp_path: Path, metadata: RuntimeMetadata) -> ChainProcess:
    """A chain that the test may kill; ``metadata`` makes sure that the cache is filled."""
    return ChainProcess(tmp_path / "chain")


async def _until_written(port: SdkChain, netuid: int, text: bytes) -> None:
    """Commit ``text`` whatever it takes: after an unknown fate, look before repeating."""
    while True:
        try:
            hotkey = await port.subnet_owner_hotkey(netuid)
            if await port.commitment(netuid, hotkey) == (text,):
                return
            await port.set_commitment(netuid, (text,))
        except Retryable:
            await asyncio.sleep(BLOCK_TIME_S)


@async_test
async def test_killed_at_any_moment_it_keeps_all_that_it_confirmed(chain: ChainProcess) -> None:
    chain.start()
    bench = sdk_bench(chain.url)
    netuid, owner = await bench.subnet(tempo=4)
    await bench.port(owner).serve(netuid, Endpoint("127.0.0.2", 8091))
    validator = await bench.validator(netuid, owner)
    await validator.set_weights(netuid, {Uid(0): 65535}, version_key=0)
    genesis, block = await validator.genesis_hash(), await validator.block()
    port = SdkChain(chain.url, owner, timeout_s=WAIT_S)
    for round_number in range(4):
        confirmed: list[bytes] = []
        writing = asyncio.create_task(_write_until_it_fails(port, netuid, confirmed))
        for _ in range(round_number + 1):
            await validator.wait_for_block(await validator.block() + 1, WAIT_S)
        chain.kill()
        await writing
        chain.start()
        found = await port.commitment(netuid, owner.hotkey_ss58)
        assert not confirmed or found is not None
        # What was confirmed last is there, or a later one whose confirmation was cut off.
        assert not confirmed or int((found or (b"",))[0]) in (int(confirmed[-1]), int(confirmed[-1]) + 1)
        assert await port.block() > block
        block = await port.block()
    assert await port.genesis_hash() == genesis
    assert await port.weights(netuid) == {Uid(0): {Uid(0): 65535}}
    (seat,) = (await port.metagraph(netuid)).neurons
    assert (seat.endpoint, seat.validator_permit, seat.stake_rao) == (Endpoint("127.0.0.2", 8091), True, 100 * 10**9)
    await port.close()
    await bench.close()
    assert chain.stop() == 0


async def _write_until_it_fails(port: SdkChain, netuid: int, confirmed: list[bytes]) -> None:
    number = 0
    while True:
        text = str(number := number + 1).encode()
        try:
            await port.set_commitment(netuid, (text,))
        except Retryable:
            return
        confirmed.append(text)


@async_test
async def test_one_connection_outlives_restarts(chain: ChainProcess) -> None:
    chain.start()
    bench = sdk_bench(chain.url)
    netuid, owner = await bench.subnet()
    port = SdkChain(chain.url, owner, timeout_s=WAIT_S)
    waiting = asyncio.create_task(port.wait_for_block(await port.block() + 20, WAIT_S))
    chain.kill()
    for work in (port.block(), port.set_commitment(netuid, (b"x",)), port.metagraph(netuid)):
        with pytest.raises(Retryable):
            await work
    chain.start()
    await _until_written(port, netuid, b"after")
    await waiting
    await port.close()
    await bench.close()
    chain.stop()


@async_test
async def test_a_connection_that_died_unused_is_replaced_without_complaint(chain: ChainProcess) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    chain.start()
    port = SdkChain(chain.url, timeout_s=WAIT_S)
    before = await port.block()
    sessions = {task for task in asyncio.all_tasks() if task.get_name() == "rpc-session"}
    chain.kill()
    await asyncio.wait(sessions, timeout=WAIT_S)
    assert all(task.done() for task in sessions)
    del sessions
    chain.start()
    assert await port.block() >= before
    await port.close()
    gc.collect()
    assert complaints == []
    chain.stop()


@async_test
async def test_a_stopped_node_is_an_answer_that_does_not_come(chain: ChainProcess) -> None:
    chain.start()
    patient, hasty = SdkChain(chain.url, timeout_s=WAIT_S), SdkChain(chain.url, timeout_s=0.3)
    before = await patient.block()
    chain.pause()
    with pytest.raises(Retryable, match="no answer"):
        await hasty.block()
    chain.resume()
    assert await patient.block() >= before
    await hasty.close()
    await patient.close()
    chain.stop()


async def _fails(folder: Path, port: int, block_time_s: float | None, cache: Path) -> BrigadeError:
    with pytest.raises(BrigadeError) as failed:
        await run_node(folder, "127.0.0.1", port, block_time_s, cache, ready=lambda url: None)
    return failed.value


@async_test
async def test_what_does_not_go_is_said(chain: ChainProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain.start()
    assert "another chain runs" in str(await _fails(chain.folder, 0, None, cache_dir()))
    assert "another --port" in str(await _fails(tmp_path / "other", chain.port, None, cache_dir()))
    assert chain.stop() == 0
    error = await _fails(chain.folder, 0, 9.0, cache_dir())
    assert "block time of 0.05 s" in str(error)
    assert error.exit_code == 2
    monkeypatch.setenv("BRIGADE_BITTENSOR_SDIST", "/nowhere")
    error = await _fails(tmp_path / "none", 0, None, tmp_path)
    assert "/nowhere" in str(error)
    assert error.exit_code == 3


def test_the_command_line_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert brigade(["chain", "local", "--dir", str(tmp_path), "--block-time", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--block-time" in line
    assert brigade(["chain", "local", "--help"]) == 0
    assert "--port" in capsys.readouterr().out


def test_it_writes_its_facts(chain: ChainProcess) -> None:
    chain.start()
    facts = json.loads((chain.folder / "chain.json").read_bytes())
    assert facts["url"] == chain.url
    assert facts["block_time_s"] == BLOCK_TIME_S
    assert chain.stop() == 0


@async_test
async def test_the_unmodified_btcli_reads_it(node_bench: Bench, chain_process: ChainProcess, tmp_path: Path) -> None:
    netuid, owner = await node_bench.subnet()
    await node_bench.port(owner).serve(netuid, Endpoint("127.0.0.2", 8091))
    await node_bench.close()
    environment = {**os.environ, **sdk_environment(tmp_path / "sdk"), "HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    graph, subnets = await asyncio.gather(
        _btcli(environment, chain_process.url, "query", "metagraph", "--netuid", str(netuid)),
        _btcli(environment, chain_process.url, "subnets", "list"),
    )
    assert graph["hotkeys"] == [owner.hotkey_ss58]
    assert graph["axons"][0]["port"] == 8091
    assert netuid in [row["netuid"] for row in (subnets if isinstance(subnets, list) else subnets["subnets"])]
    assert not list((tmp_path / "home").rglob("*"))


async def _btcli(environment: dict[str, str], url: str, *command: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "btcli"),
        *(*command, "--json", "--network", url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def test_nothing_lands_in_the_home_folder(chain_process: ChainProcess, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import asyncio, sys; from pathlib import Path; from common.chain.sdk import SdkChain, isolate_sdk\n"
        "from common.chain.wallets import ensure_wallet\n"
        "isolate_sdk(Path(sys.argv[1])); ensure_wallet(Path(sys.argv[1]), 'w')\n"
        "async def main():\n"
        "    port = SdkChain(sys.argv[2]); print(await port.block()); await port.close()\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run"), chain_process.url]
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    for variable in sdk_environment(tmp_path):
        env.pop(variable, None)
    subprocess.run(command, env=env, check=True, timeout=WAIT_S, stdout=subprocess.DEVNULL)
    assert not list(home.rglob("*"))
    assert list((tmp_path / "run" / "runtime-cache").iterdir())


@async_test
async def test_no_node_at_all_is_retryable() -> None:
    port = SdkChain("ws://127.0.0.1:9", timeout_s=WAIT_S)
    with pytest.raises(Retryable, match="no connection"):
        await port.block()
    await port.close()


def test_a_network_that_is_none() -> None:
    with pytest.raises(OperatorError, match="nowhere"):
        SdkChain("nowhere")
