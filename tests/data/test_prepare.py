"""Preparing text: the same text gives the same dataset, documents are held out by content, bad files do no harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from common.data.cli import app
from common.data.corpus import clean_text, documents, folder_corpus, stdlib_corpus
from common.data.dataset import open_dataset
from common.data.index import encode_index
from common.data.prepare import Prepared, prepare, select
from common.data.tokenizer import ByteTokenizer, tokenizer_named
from common.errors import OperatorError, SetupError
from common.units import sha256_hex


def write_texts(folder: Path, count: int = 200) -> Path:
    for number in range(count):
        path = folder / f"part{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Document {number}.\n" + f"line {number * 7} of text\n" * 40)
    return folder


def run(source: Path, out: Path, max_bytes: int | None = None) -> Prepared:
    return prepare(folder_corpus(source), ByteTokenizer(), out, max_bytes)


def split_text(out: Path, split: str) -> str:
    tokens = getattr(open_dataset(out), split)
    return ByteTokenizer().decode(tokens.read(0, tokens.total))


def test_every_document_is_in_exactly_one_split(tmp_path: Path) -> None:
    made = run(write_texts(tmp_path / "texts"), tmp_path / "out")
    train, heldout = split_text(tmp_path / "out", "train"), split_text(tmp_path / "out", "heldout")
    assert all((f"Document {n}.\n" in train) != (f"Document {n}.\n" in heldout) for n in range(200))
    assert 1 <= heldout.count("\0") <= 20
    assert train.count("\0") + heldout.count("\0") == sum(file.documents for file in made.index.files) == 200
    assert made.index.tokens("train") == len(train.encode())


def test_the_identifier_depends_on_text_only(tmp_path: Path) -> None:
    one = run(write_texts(tmp_path / "here"), tmp_path / "a")
    two = run(write_texts(tmp_path / "there" / "deep"), tmp_path / "b")
    assert one.dataset == two.dataset == sha256_hex(encode_index(one.index))
    assert open_dataset(tmp_path / "b", one.dataset).id == one.dataset
    write_texts(tmp_path / "here", 201)
    assert run(tmp_path / "here", tmp_path / "c").dataset != one.dataset


def test_a_document_stays_held_out_when_text_is_added(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    before = select(folder_corpus(texts)).held_out
    write_texts(texts, 300)
    assert before <= select(folder_corpus(texts)).held_out


def test_preparing_again_is_harmless_and_another_dataset_is_refused(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    first = run(texts, tmp_path / "out")
    assert run(texts, tmp_path / "out") == first
    write_texts(texts, 210)
    with pytest.raises(OperatorError, match="another dataset"):
        run(texts, tmp_path / "out")
    assert open_dataset(tmp_path / "out").id == first.dataset


def test_copies_are_kept_once(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 20)
    (texts / "copy.txt").write_bytes((texts / "part1" / "001.txt").read_bytes().replace(b"\n", b"\r\n"))
    made = run(texts, tmp_path / "out")
    assert made.duplicates == 1
    assert sum(file.documents for file in made.index.files) == 20


def test_undecodable_files_are_read_or_skipped(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 10)
    (texts / "latin.txt").write_bytes("Ein Märchen aus alten Zeiten".encode("latin-1"))
    (texts / "picture.png").write_bytes(bytes(range(256)) * 10)
    (texts / "noise.bin").write_bytes(bytes(range(128, 256)) * 20)
    (texts / "empty.txt").write_bytes(b"")
    (texts / ".hidden").write_text("not for training, this one")
    made = run(texts, tmp_path / "out")
    assert made.not_text == 2
    assert sum(file.documents for file in made.index.files) == 11
    both = split_text(tmp_path / "out", "train") + split_text(tmp_path / "out", "heldout")
    assert "Ein M\ufffdrchen" in both
    assert "hidden" not in both
    assert "not for training" not in both


def test_one_file_is_cut_into_documents_without_losing_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("\n".join(f"{number} sentences stand here" for number in range(20_000)))
    found = [text for text in documents(folder_corpus(path)) if text is not None]
    assert "\n".join(found) == path.read_text()
    made = run(path, tmp_path / "out")
    assert made.index.tokens("heldout") > 0
    assert sum(file.documents for file in made.index.files) == len(found) >= 50


def test_a_long_line_is_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("word " * 50_000)
    assert "".join(text or "" for text in documents(folder_corpus(path))) == path.read_text()


def test_max_bytes_is_a_cap(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    all_of_it = run(texts, tmp_path / "all")
    some = run(texts, tmp_path / "some", max_bytes=40_000)
    documents_kept = sum(file.documents for file in some.index.files)
    text_bytes = some.index.tokens("train") + some.index.tokens("heldout") - documents_kept
    assert 35_000 <= text_bytes <= 40_000 < all_of_it.index.tokens("train")


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"one document only"])
def test_too_little_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(content)
    with pytest.raises(OperatorError, match=r"holds no text|too little text"):
        run(tmp_path / "texts", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        folder_corpus(tmp_path / "nowhere")


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(OperatorError, match="choose one of bytes"):
        tokenizer_named("gpt2")


def test_text_is_cleaned_the_same_way_everywhere() -> None:
    assert clean_text(b"\xef\xbb\xbfone\r\ntwo\rthree\n\n") == "one\ntwo\nthree"
    assert clean_text(b"a\0b") is None
    assert clean_text(b"\xff\xfe\xfd") is None


def test_pythons_library_is_a_corpus_in_a_fixed_order() -> None:
    corpus = stdlib_corpus()
    assert corpus.size_bytes > 1_000_000
    assert corpus == stdlib_corpus()
    names = {path.name for path in corpus.files}
    assert {"argparse.py", "typing.py"} <= names
    assert not any("site-packages" in path.parts or "test" in path.parts for path in corpus.files)


def test_token_files_are_checked_when_opened(tmp_path: Path) -> None:
    made = run(write_texts(tmp_path / "texts", 20), tmp_path / "out")
    path = tmp_path / "out" / made.index.files[0].name
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(SetupError, match="does not match its hash"):
        open_dataset(tmp_path / "out")
    path.write_bytes(data[:-1])
    with pytest.raises(SetupError, match="missing or incomplete"):
        open_dataset(tmp_path / "out", verify=False)


def test_a_folder_that_holds_another_or_no_dataset_is_refused(tmp_path: Path) -> None:
    made = run(write_texts(tmp_path / "texts", 20), tmp_path / "out")
    other = type(made.dataset)("0" * 64)
    with pytest.raises(SetupError, match="not that of dataset 0000"):
        open_dataset(tmp_path / "out", other)
    with pytest.raises(SetupError, match="holds no dataset"):
        open_dataset(tmp_path / "texts")


def test_command_line(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 20)
    result = CliRunner().invoke(app, ["prepare", str(texts), "--out", str(tmp_path / "out"), "--max-bytes", "10000"])
    assert result.exit_code == 0, result.output
    assert open_dataset(tmp_path / "out").id in result.output
    refused = CliRunner().invoke(app, ["prepare", str(texts), "--out", str(tmp_path / "no"), "--max-bytes", "0"])
    assert isinstance(refused.exception, OperatorError)


def test_bytes_are_their_own_tokens() -> None:
    tokenizer = tokenizer_named("bytes")
    tokens = tokenizer.encode("süß")
    assert tokens.dtype == np.uint8
    assert tokens.tolist() == list("süß".encode())
    assert tokenizer.decode(tokens) == "süß"
