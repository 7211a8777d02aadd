"""Options that several commands take, each written once: name, variable and help are the same everywhere.

Used as annotations of typer commands; the default stands at the parameter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.errors import OperatorError
from common.store.config import StorageConfig, load_config

Netuid = Annotated[int, typer.Option(envvar="BRIGADE_NETUID", min=0, help="Number of the subnet.")]
WalletName = Annotated[str, typer.Option(envvar="BRIGADE_WALLET", help="Name of the wallet.")]
HotkeyName = Annotated[str, typer.Option(envvar="BRIGADE_HOTKEY", help="Name of its hotkey.")]
WalletPath = Annotated[
    Path | None, typer.Option(envvar="BRIGADE_WALLET_PATH", help="Folder of the wallets; DIR/wallets if not given.")
]
Chain = Annotated[str, typer.Option(envvar="BRIGADE_CHAIN", help="Chain: ws://… or wss://…, or a network's name.")]
Threads = Annotated[
    int | None, typer.Option(envvar="BRIGADE_THREADS", min=1, help="PyTorch's threads; all cores if not given.")
]
JsonLines = Annotated[bool, typer.Option("--json", envvar="BRIGADE_JSON", help="Log as JSON lines.")]
Reduce = Annotated[
    str, typer.Option(envvar="BRIGADE_REDUCE", help="Who adds the deltas up: leader, or butterfly (the miners).")
]
DEFAULT_CHAIN = "ws://127.0.0.1:9944"

Endpoint = Annotated[
    str | None, typer.Option(envvar="BRIGADE_STORAGE_ENDPOINT", help="The bucket's S3 endpoint, http(s)://host[:port].")
]
Bucket = Annotated[str | None, typer.Option(envvar="BRIGADE_STORAGE_BUCKET", help="The bucket's name.")]
Prefix = Annotated[str, typer.Option(envvar="BRIGADE_STORAGE_PREFIX", help="Where in the bucket.")]
Region = Annotated[str, typer.Option(envvar="BRIGADE_STORAGE_REGION", help="R2 wants auto.")]
AccessKey = Annotated[
    str | None, typer.Option(envvar="BRIGADE_STORAGE_ACCESS_KEY", help="Not needed to read a public bucket.")
]
SecretKey = Annotated[str | None, typer.Option(envvar="BRIGADE_STORAGE_SECRET_KEY", help="Better in the environment.")]
DEFAULT_REGION = "us-east-1"


def storage_config(
    flag: str,
    file: Path | None,
    endpoint: str | None,
    bucket: str | None,
    prefix: str,
    region: str,
    access_key: str | None,
    secret_key: str | None,
) -> StorageConfig:
    """The bucket from the file that ``flag`` names, or from the single settings; both at once are refused."""
    if file is not None:
        if endpoint is not None or bucket is not None:
            raise OperatorError(f"give {flag}, or --endpoint and --bucket, not both")
        return load_config(file)
    if endpoint is None or bucket is None:
        raise OperatorError(f"give {flag}, or --endpoint and --bucket with the keys in BRIGADE_STORAGE_*_KEY")
    return StorageConfig(endpoint, bucket, access_key or "", secret_key or "", prefix, region)
