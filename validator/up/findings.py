"""What is known of miners' rates, and who says so: where ``brigade health`` and ``brigade explain`` look for it.

The leader sees the miners; its validator is asked first. When that does not answer, or follows, the reports in the
run's bucket tell what the last leaders found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from common.errors import BrigadeError, SetupError
from common.healthreport import HealthReport
from common.reports import Report
from common.typed import from_json
from common.units import Hotkey
from validator.handover import known_before
from validator.run_place import Asked, find
from validator.up.asking import address_of, names_of
from validator.up.client import fetch_findings, status_client
from validator.up.folder import Folder

NOBODY = Hotkey("")


@dataclass(frozen=True)
class Known:
    """What is known, by whom, and what the miners are called here."""

    run: str
    by: str
    """Who says so, for people."""
    health: HealthReport
    names: dict[Hotkey, str]

    def name(self, hotkey: Hotkey) -> str:
        """As the folder calls it, else its hotkey."""
        return self.names.get(hotkey, hotkey)


def known(directory: Path, url: str | None) -> Known:
    """Ask the validator, then the bucket. SetupError when neither tells; OperatorError as ``address_of``."""
    folder = Folder(directory.absolute())
    address = address_of(folder, url)
    with status_client() as client:
        found = fetch_findings(client, address)
    names = {} if url else names_of(folder)
    if found is not None and found.leading and found.health is not None:
        health = from_json(HealthReport, found.health, "bad_health")
        return Known(found.run, f"the leader {found.hotkey}", health, names)
    trouble = f"no validator answers at {address}" if found is None else _why_not(found.leading, address)
    if url is not None:
        raise SetupError(f"{trouble}; the run's folder (--dir) knows the bucket with the reports")
    logger.warning("{}: looking into the reports in the bucket", trouble)
    return _by_the_bucket(folder, names, trouble)


def _why_not(leading: bool, address: str) -> str:
    if leading:
        return f"the validator at {address} leads, and no round has ended since"
    return f"the validator at {address} follows, and only a leader sees the miners"


def _by_the_bucket(folder: Folder, names: dict[Hotkey, str], trouble: str) -> Known:
    try:
        report = _newest(folder)
    except BrigadeError as fault:
        raise SetupError(f"{trouble}, and the run's bucket can't be read: {fault}") from fault
    if report is None or report.health is None:
        raise SetupError(f"{trouble}, and no leader's newest report tells of the miners' rates yet")
    return Known(report.run, f"the report of {report.signer} on round {report.round}", report.health, names)


def _newest(folder: Folder) -> Report | None:
    """The newest report of the last few leaders that tells of health."""
    place = find(Asked(folder=folder.root))
    state = place.log().catch_up()
    told = [report for report in known_before(place.listing_store(), state, NOBODY, ()).reports if report.health]
    return max(told, key=lambda report: report.round, default=None)
