"""``brigade validator``: lead, merge, score and pay, or follow until there is something to lead.

Settings come as flags, ``BRIGADE_*`` variables or a TOML file, in that order. Before anything runs the start proves the
storage, the spec's hash against the owner's commitment, and that this hotkey may lead; each failure is one line.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from common.errors import OperatorError
from common.store.config import StorageConfig, load_config

app = typer.Typer(no_args_is_help=True, help="Lead, merge, score and pay.", rich_markup_mode=None)


@app.callback()
def validator() -> None:
    """Lead, merge, score and pay."""


@app.command()
def start(
    netuid: Annotated[int, typer.Option(envvar="BRIGADE_NETUID", min=0, help="Number of the subnet.")],
    wallet: Annotated[str, typer.Option(envvar="BRIGADE_WALLET", help="Name of the wallet.")] = "validator",
    hotkey: Annotated[str, typer.Option(envvar="BRIGADE_HOTKEY", help="Name of its hotkey.")] = "default",
    wallet_path: Annotated[
        Path | None, typer.Option(envvar="BRIGADE_WALLET_PATH", help="Folder of the wallets; DIR/wallets if not given.")
    ] = None,
    chain: Annotated[
        str, typer.Option(envvar="BRIGADE_CHAIN", help="Chain: ws://… or wss://…, or a network's name.")
    ] = "ws://127.0.0.1:9944",
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of everything: caches, logs, wallets.")
    ] = Path("brigade-run"),
    cache: Annotated[
        Path | None, typer.Option(envvar="BRIGADE_CACHE", help="Datasets of this machine; DIR/cache if not given.")
    ] = None,
    storage: Annotated[
        Path | None, typer.Option(envvar="BRIGADE_STORAGE", help="File with the bucket and its keys (storage.json).")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(envvar="BRIGADE_STORAGE_ENDPOINT", help="S3 endpoint, when there is no such file.")
    ] = None,
    bucket: Annotated[str | None, typer.Option(envvar="BRIGADE_STORAGE_BUCKET", help="Its bucket.")] = None,
    prefix: Annotated[str, typer.Option(envvar="BRIGADE_STORAGE_PREFIX", help="Prefix in the bucket.")] = "",
    region: Annotated[str, typer.Option(envvar="BRIGADE_STORAGE_REGION", help="R2 wants auto.")] = "us-east-1",
    access_key: Annotated[
        str, typer.Option(envvar="BRIGADE_STORAGE_ACCESS_KEY", show_default=False, help="Better in the environment.")
    ] = "",
    secret_key: Annotated[
        str, typer.Option(envvar="BRIGADE_STORAGE_SECRET_KEY", show_default=False, help="Better in the environment.")
    ] = "",
    host: Annotated[
        str, typer.Option(envvar="BRIGADE_HOST", help="Address to listen on and to publish; never 127.0.0.1.")
    ] = "127.0.0.2",
    port: Annotated[int, typer.Option(envvar="BRIGADE_PORT", min=1, max=65535, help="Port to listen on.")] = 8091,
    publish_ip: Annotated[
        str | None, typer.Option(envvar="BRIGADE_PUBLISH_IP", help="Address to publish instead, behind a NAT.")
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="BRIGADE_DEVICE", help="Where deltas are tried: auto, cpu, cuda or cuda:<number>.")
    ] = "cpu",
    threads: Annotated[
        int | None, typer.Option(envvar="BRIGADE_THREADS", min=1, help="PyTorch's threads; all cores if not given.")
    ] = None,
    until_revision: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_UNTIL_REVISION", min=0, help="Open no round once the head has this number."),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Log as JSON lines.")] = False,
) -> None:
    """Run the validator until SIGTERM or Ctrl-C."""
    bucket_config = storage_config(storage, endpoint, bucket, prefix, region, access_key, secret_key)
    check_host(host, publish_ip)
    from validator.start import Start, run_validator

    folder = directory.absolute()
    settings = Start(
        netuid=netuid,
        wallet_path=wallet_path or folder / "wallets",
        wallet=wallet,
        hotkey=hotkey,
        chain_url=chain,
        folder=folder,
        cache=cache or folder / "cache",
        storage=bucket_config,
        host=host,
        port=port,
        publish_ip=publish_ip or host,
        device=device,
        threads=threads or os.cpu_count() or 1,
        until_revision=until_revision,
        json_lines=json_lines,
    )
    asyncio.run(run_validator(settings))


def storage_config(
    storage: Path | None,
    endpoint: str | None,
    bucket: str | None,
    prefix: str,
    region: str,
    access_key: str,
    secret_key: str,
) -> StorageConfig:
    """The bucket from the file, or from the single settings; both at once are refused."""
    if storage is not None:
        if endpoint is not None or bucket is not None:
            raise OperatorError("give --storage, or --endpoint and --bucket, not both")
        return load_config(storage)
    if endpoint is None or bucket is None:
        raise OperatorError("give --storage, or --endpoint and --bucket with the keys in BRIGADE_STORAGE_*_KEY")
    return StorageConfig(endpoint, bucket, access_key, secret_key, prefix, region)


def check_host(host: str, publish_ip: str | None) -> None:
    """The chain refuses some addresses; say so before anything starts."""
    published = publish_ip or host
    if published in ("127.0.0.1", "::1", "localhost"):
        raise OperatorError(f"the chain does not take {published} as an address: use 127.0.0.2 on one machine")
    if publish_ip is None and host in ("0.0.0.0", "::"):
        raise OperatorError(f"--host {host} says where to listen, not where we are: add --publish-ip")
