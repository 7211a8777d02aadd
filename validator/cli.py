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

from common import options
from common.errors import OperatorError
from common.merge.networks import NO_TABLE

app = typer.Typer(no_args_is_help=True, help="Lead, merge, score and pay.", rich_markup_mode=None)


@app.callback()
def validator() -> None:
    """Lead, merge, score and pay."""


@app.command()
def start(
    netuid: options.Netuid,
    wallet: options.WalletName = "validator",
    hotkey: options.HotkeyName = "default",
    wallet_path: options.WalletPath = None,
    chain: options.Chain = options.DEFAULT_CHAIN,
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_DIR", help="Folder of everything: caches, logs, wallets.")
    ] = Path("brigade-run"),
    cache: Annotated[
        Path | None, typer.Option(envvar="BRIGADE_CACHE", help="Datasets of this machine; DIR/cache if not given.")
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            envvar="BRIGADE_STORAGE",
            help="File with the bucket and its keys; without any keys the validator only follows.",
        ),
    ] = None,
    endpoint: options.Endpoint = None,
    bucket: options.Bucket = None,
    prefix: options.Prefix = "",
    region: options.Region = options.DEFAULT_REGION,
    access_key: options.AccessKey = None,
    secret_key: options.SecretKey = None,
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
    threads: options.Threads = None,
    until_revision: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_UNTIL_REVISION", min=0, help="Open no round once the head has this number."),
    ] = None,
    asn_table: Annotated[
        Path | None,
        typer.Option(
            envvar="BRIGADE_ASN_TABLE",
            help='File of lines "prefix asn": miners of one ASN are related in deals, looked at together when slow.',
        ),
    ] = None,
    json_lines: options.JsonLines = False,
) -> None:
    """Run the validator until SIGTERM or Ctrl-C."""
    # A validator without any of them has no write access: it follows, checks, scores and pays.
    given = storage is not None or endpoint is not None or bucket is not None or access_key is not None
    keys = (access_key, secret_key)
    bucket_config = (
        options.storage_config("--storage", storage, endpoint, bucket, prefix, region, *keys) if given else None
    )
    check_host(host, publish_ip)
    from validator.asntable import read_asn_table
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
        storage_file=storage,
        host=host,
        port=port,
        publish_ip=publish_ip or host,
        device=device,
        threads=threads or os.cpu_count() or 1,
        until_revision=until_revision,
        asns=read_asn_table(asn_table) if asn_table else NO_TABLE,
        json_lines=json_lines,
    )
    asyncio.run(run_validator(settings))


def check_host(host: str, publish_ip: str | None) -> None:
    """The chain refuses some addresses; say so before anything starts."""
    published = publish_ip or host
    if published in ("127.0.0.1", "::1", "localhost"):
        raise OperatorError(f"the chain does not take {published} as an address: use 127.0.0.2 on one machine")
    if publish_ip is None and host in ("0.0.0.0", "::"):
        raise OperatorError(f"--host {host} says where to listen, not where we are: add --publish-ip")
