"""``brigade data``: prepare text for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.data.corpus import folder_corpus, stdlib_corpus
from common.data.prepare import Prepared, prepare
from common.data.tokenizer import tokenizer_named
from common.errors import OperatorError
from common.units import format_bytes

app = typer.Typer(help="Prepare training data.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Prepare training data."""


@app.command("prepare")
def prepare_command(
    out: Annotated[
        Path, typer.Option("--out", envvar="BRIGADE_DATA_OUT", help="Folder for the token files and their index.")
    ],
    path: Annotated[
        Path | None, typer.Argument(help="Text file or folder; without it, the standard library of Python.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", envvar="BRIGADE_MAX_BYTES", help="Keep at most this much text.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", envvar="BRIGADE_TOKENIZER", help="How text becomes tokens: bytes.")
    ] = "bytes",
) -> None:
    """Turn text into token files with an index, and print the dataset's identifier."""
    if max_bytes is not None and max_bytes <= 0:
        raise OperatorError("--max-bytes must be positive")
    corpus = stdlib_corpus() if path is None else folder_corpus(path)
    print_prepared(prepare(corpus, tokenizer_named(tokenizer), out, max_bytes))


def print_prepared(made: Prepared) -> None:
    """What was made, for people."""
    for split in ("train", "heldout"):
        files = made.index.of(split)
        size = format_bytes(sum(made.index.size_bytes(file) for file in files))
        documents = sum(file.documents for file in files)
        typer.echo(f"{split:8} {made.index.tokens(split)} tokens in {documents} documents, {size}")
    typer.echo(f"skipped  {made.duplicates} duplicates, {made.not_text} parts that are no text")
    typer.echo(f"dataset  {made.dataset}")
