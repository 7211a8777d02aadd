"""The operator's ASN table: from where it is named, what is refused of it, and what it changes of a deal."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import cli
from common.errors import OperatorError
from validator.asntable import read_asn_table

TABLE = "# documentation\n192.0.2.0/24 64496\n\n198.51.100.0/24 AS64496 # the same provider\n2001:db8::/32 64499\n"


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "asn.txt"
    path.write_text(TABLE)
    table = read_asn_table(path)
    assert [table.asn_of(host) for host in ("192.0.2.9", "198.51.100.1", "2001:db8::1")] == [64496, 64496, 64499]
    assert table.asn_of("203.0.113.1") is None


def test_what_is_no_text_or_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "asn.txt.gz"
    path.write_bytes(b"192.0.2.0/24 1\n\x1f\x8b\x08")
    with pytest.raises(OperatorError, match=r"asn\.txt\.gz line 2: no UTF-8 text; unpack"):
        read_asn_table(path)
    monkeypatch.setattr("validator.asntable.MAX_TABLE_BYTES", 8)
    with pytest.raises(OperatorError, match="has more than 8 B"):
        read_asn_table(path)


@pytest.mark.parametrize("given", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file or directory; give a file of lines"),
        ("192.0.2.0/24 64496\n192.0.2.0/24\n", 'line 2: not "prefix asn", as in 192.0.2.0/24 64496: correct the line'),
        ("192.0.2.0/24 0\n", "line 1: 0 is no ASN, which is between 1 and"),
    ],
)
def test_a_table_that_is_none_ends_the_start_in_one_line_wherever_it_was_named(
    given: str,
    text: str | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, settings = tmp_path / "asn.txt", tmp_path / "settings.toml"
    if text is not None:
        path.write_text(text)
    settings.write_text(f'[validator.start]\nasn_table = "{path}"\n' if given == "file" else "")
    if given == "variable":
        monkeypatch.setenv("BRIGADE_ASN_TABLE", str(path))
    flags = ["--asn-table", str(path)] if given == "flag" else []
    monkeypatch.chdir(tmp_path)
    assert cli.run(["--config", str(settings), "validator", "start", "--netuid", "2", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--asn-table {path}" in line
    assert told in line
