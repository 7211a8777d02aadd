"""What ``brigade run verify`` says of convictions: proved again, a lie of the validator that signed it, or neither any
more, since retention has deleted the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.convictions import MAX_CONVICTION_BYTES, Conviction, decode_conviction
from common.errors import OperatorError, Rejected, SetupError
from common.runlog.proving import VerifyError
from common.units import Hotkey, printable
from validator.audits.recheck import Rechecked, recheck, recheck_all
from validator.run_place import Place


class EvidenceDeleted(SetupError):
    """A conviction can't be proved any more, and isn't proved false."""


def told_again(place: Place, convictions: Sequence[Conviction], unheard: Mapping[Hotkey, int]) -> list[str]:
    """Those in the bucket, each in a line, and how many of each signer are not looked at."""
    found = recheck_all(place.reader, place.log(), convictions) if convictions else []
    lines = [_line(conviction, again) for conviction, again in zip(convictions, found, strict=True)]
    return lines + [
        f"not looked at: {count} older convictions said by validator {signer}" for signer, count in unheard.items()
    ]


def proved_from_file(place: Place, path: Path) -> str:
    """The line of one in a file, such as a validator without write access serves. ``VerifyError`` unless it is proved,
    ``EvidenceDeleted`` when retention has deleted what it rests on, OperatorError for a file that holds none."""
    try:
        with path.open("rb") as file:
            conviction = decode_conviction(file.read(MAX_CONVICTION_BYTES + 1), place.run)
    except OSError as error:
        raise OperatorError(f"--conviction {path}: {error.strerror}") from error
    except Rejected as refusal:
        raise OperatorError(f"--conviction {path} is no conviction of run {place.run}: {refusal}") from refusal
    found = recheck(place.reader, place.log(), conviction)
    if found.deleted_by is not None:
        raise EvidenceDeleted(f"{path}: {_line(conviction, found)}")
    if not found.proved:
        raise VerifyError(str(path), _line(conviction, found))
    return _line(conviction, found)


def _line(conviction: Conviction, found: Rechecked) -> str:
    """Printable: it quotes what its signer wrote."""
    about = f"{conviction.kind.replace('_', ' ')}, round {conviction.round}, said by validator {conviction.signer}"
    if found.proved:
        return printable(f"convicted, proved again: {about}: {conviction.told}: {found.why}")
    if found.deleted_by is not None:
        return printable(f"unproved now, and nobody's fault: {about}: {found.why}")
    told = f"not proved, and its signer has to answer for it: {about}, of {conviction.accused}: {found.why}"
    return printable(told)
