"""The operator's file of prefixes and autonomous systems, read once at the start.

It relates miners whose addresses belong to one provider: no two of them are given the same partition to reduce, or
the leader computes it itself. Without it only coldkeys and networks relate them.
"""

from __future__ import annotations

from pathlib import Path

from common.errors import OperatorError
from common.merge.networks import AsnTable, parse_asn_table
from common.units import format_bytes

MAX_TABLE_BYTES = 256 << 20
FLAG = "--asn-table"


def read_asn_table(path: Path) -> AsnTable:
    """The table in a file. Blocking. OperatorError for one that can't be read, and for a line that is none, by its
    number: a table of which a part was passed over would relate fewer miners than its operator means."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            f'{FLAG} {path}: {error.strerror}; give a file of lines "prefix asn", or leave the option out'
        ) from error
    if len(data) > MAX_TABLE_BYTES:
        raise OperatorError(f"{FLAG} {path} has more than {format_bytes(MAX_TABLE_BYTES)}, the most that is read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OperatorError(f"{FLAG} {path} line {line}: no UTF-8 text; unpack the file if it is packed") from error
    return parse_asn_table(text, f"{FLAG} {path}")
