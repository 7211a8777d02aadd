"""``brigade storage``: run the embedded server, or look whether a bucket will do."""

from __future__ import annotations

import secrets
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from common import options, timeouts
from common.errors import SetupError
from common.store.probe import probe_bucket
from common.store.s3 import S3Store
from common.store.seaweed import SeaweedServer

app = typer.Typer(no_args_is_help=True, help="The object store: an embedded S3 server, and checks of any bucket.")


@app.command()
def serve(
    directory: Annotated[
        Path, typer.Option("--dir", envvar="BRIGADE_STORAGE_DIR", help="Where objects, keys, ports and logs live.")
    ] = Path("brigade-storage"),
    port: Annotated[
        int | None,
        typer.Option(envvar="BRIGADE_STORAGE_PORT", min=1, max=55535, help="S3 port; a free one is chosen and kept."),
    ] = None,
    bucket: Annotated[str, typer.Option(envvar="BRIGADE_STORAGE_BUCKET", help="The bucket to create.")] = "brigade",
) -> None:
    """Run the S3 server on the loopback until SIGTERM or Ctrl-C. The keys are written to DIR/storage.json."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = SeaweedServer(directory.absolute(), bucket=bucket, s3_port=port)
    try:
        config = server.start(die_with_parent=True)
        typer.echo(f"storage ready: {config.endpoint} bucket {config.bucket}, keys in {server.config_path}")
        while not stop.wait(timeouts.WAIT_POLL_S):
            if server.returncode() is not None:
                raise SetupError(f"the storage server ended by itself ({server.returncode()}); see {server.log_path}")
    finally:
        server.stop()


@app.command()
def probe(
    config_path: Annotated[
        Path | None, typer.Option("--config", envvar="BRIGADE_STORAGE_CONFIG", help="A storage.json; or give the rest.")
    ] = None,
    endpoint: options.Endpoint = None,
    bucket: options.Bucket = None,
    prefix: options.Prefix = "",
    region: options.Region = options.DEFAULT_REGION,
    access_key: options.AccessKey = None,
    secret_key: options.SecretKey = None,
) -> None:
    """Try everything Brigade needs of a bucket; exit 3 and one line that says what to do when it won't do."""
    config = options.storage_config("--config", config_path, endpoint, bucket, prefix, region, access_key, secret_key)
    report = probe_bucket(S3Store(config), secrets.token_hex(8))
    typer.echo(f"{config.endpoint} bucket {config.bucket} will do: {', '.join(report.passed)}")
    typer.echo(f"clock: {report.skew_s:+.1f} s off the storage's")
