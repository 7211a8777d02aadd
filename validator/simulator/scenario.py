"""The faults of a simulation: a TOML file with one ``[[fault]]`` table for each.

    [[fault]]
    kind = "die_during_upload"      # what happens, see KINDS
    target = "miner:3"              # miner:N, group:N, share:0.25 (seeded choice of the miners), miners,
                                    # validator:N (validator: the first), leader (who leads then), storage, chain
                                    # or lease
    start = 120.0                   # seconds, or { round = 2, phase = "closing" }
    duration = 60.0                 # seconds until it is over; of a death: until the machine is started again;
                                    # left out: what the kind's line below says
    size = 1.0                      # how much: see the kind; left out: the kind's own

Phases: open, closing, frozen, reduced, gap (between the round's end and the next one's opening). The reader is total:
whatever the bytes are, it returns faults or raises ``OperatorError`` that names the table.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import OperatorError
from common.units import RoundId

MAX_SCENARIO_BYTES = 1 << 20
MAX_FAULTS = 10_000
PHASES = ("open", "closing", "frozen", "reduced", "gap")
FOREVER = math.inf
_FORMS = {
    "miner": "miner:N",
    "group": "group:N",
    "provider": "provider:N",
    "share": "share:0.25",
    "validator": "validator:N",
}
_EXAMPLE = f"""A scenario is a TOML file with one table for each fault:

    [[fault]]
    kind = "link_slow"
    target = "miner:3"    # miner:N, group:N and provider:N count from 0; share:0.25 of the miners; miners; validator:N
                          # or, if there is only one, validator; leader: who leads then; storage; chain; lease
    start = 120.0         # seconds, or {{ round = 2, phase = "closing" }}; phases: {", ".join(PHASES)}
    duration = 60.0       # seconds; left out: the kind's, or to the end
    size = 0.1            # left out: the kind's

Kinds; target: miner, group, share or miners where nothing else is said:
"""


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    what: str
    targets: tuple[str, ...] = ("miner", "group", "share", "miners")
    duration_s: float = FOREVER
    size: float = 1.0
    sizes: str = ""
    """What size means; empty if it means nothing."""
    most: float = 1e9
    """Size."""
    standbys: bool = False
    """Whether it means something only where several validators may lead."""
    owners: bool = False
    """Whether it means something only where miners reduce."""


_MINERS = ("miner", "group", "share", "miners")
_LEADERS = ("validator", "leader")
_ALL = (*_MINERS, *_LEADERS)
_STORAGE = ("storage",)

KINDS: dict[str, Kind] = {
    "die": Kind("its process is killed at once and started again after the duration", _ALL),
    "die_before_upload": Kind("it is killed before the first byte of its next submission"),
    "die_during_upload": Kind("it is killed when half of its next submission is sent"),
    "die_after_upload": Kind("it is killed when its next submission is there, before it can say so"),
    "stop": Kind("it is stopped (SIGSTOP) and goes on after the duration", _ALL, 30.0),
    "link_cut": Kind("nothing reaches it or leaves it", _ALL, 30.0),
    "link_slow": Kind("its link has a share of its capacity", _MINERS, 120.0, 0.1, "the share left", 1.0),
    "corrupt": Kind("a byte of its next submission is changed on the way"),
    "missing": Kind("its next submission is confirmed, but it is not there"),
    "duplicate": Kind("it says everything twice", _MINERS, 600.0),
    "late": Kind("its next final submission is held back", _MINERS, FOREVER, 1.0, "by so many rounds"),
    "nan": Kind("its next submissions hold no finite numbers", _MINERS, 600.0),
    "scale": Kind("its next submissions are multiplied", _MINERS, 600.0, 100.0, "by this"),
    "flip": Kind("its next submissions have the other sign", _MINERS, 600.0),
    "copy": Kind("its next submissions are another miner's", _MINERS, 600.0),
    "average": Kind("its next submissions are the mean of two others'", _MINERS, 600.0),
    "wrong_mean": Kind("it hands in wrong means, the same ones as others who do", _MINERS, 600.0, owners=True),
    "clock": Kind("its wall clock is off", _ALL, FOREVER, 300.0, "by so many seconds"),
    "join": Kind("it is not there before"),
    "lost_reply": Kind("the reply to its next request is lost", _ALL),
    "storage_down": Kind("the storage does not answer", _STORAGE, 30.0),
    "storage_throttle": Kind("the storage refuses requests (429, 503)", _STORAGE, 60.0, 0.5, "this share of them", 1.0),
    "storage_slow": Kind("the storage gives a share of its rate", _STORAGE, 60.0, 0.1, "the share left", 1.0),
    "storage_cut": Kind("it can't reach the storage", _LEADERS, 30.0, standbys=True),
    "chain_cut": Kind("it can't reach the chain", _LEADERS, 30.0, standbys=True),
    "miners_cut": Kind("no miner can reach it", _LEADERS, 30.0, standbys=True),
    "fast_clock": Kind("its monotonic clock runs fast", _LEADERS, 60.0, 8.0, "by this factor", 1e3, standbys=True),
    "stale_entry": Kind("it writes an entry of the term before into the log by force", _LEADERS, standbys=True),
    "chain_down": Kind("the chain does not answer", ("chain",), 30.0, standbys=True),
    "lease_deleted": Kind("a stranger deletes the lease every second", ("lease",), 30.0, standbys=True),
    "lease_split": Kind("each validator sees a lease of its own", ("lease",), 30.0, standbys=True),
}


_FLEET = ("miner", "provider", "share", "miners")


def _rate(what: str, targets: tuple[str, ...], size: float, sizes: str = "the share left", most: float = 1.0) -> Kind:
    return Kind(what, targets, FOREVER, size, sizes, most)


RATES: dict[str, Kind] = {
    "slow_compute": _rate("it trains at a share of its speed", _FLEET, 0.7),
    "slow_uplink": _rate("it uploads at a share of its rate", _FLEET, 0.5),
    "slow_downlink": _rate("it downloads at a share of its rate", _FLEET, 0.5),
    "decay": _rate("its uplink loses a share of what is left, every round", _FLEET, 0.03, "that share", 0.5),
    "provider_link": _rate("the uplinks of a provider have a share of their rate", ("provider",), 0.5),
    "gpu_set": _rate("the same, for its machines of one GPU model", ("provider",), 0.3),
    "flap": _rate("its connection breaks and returns", _FLEET, 0.5, "the share of the minutes in which"),
    "truncate": _rate("its transfers are cut short", _FLEET, 0.5, "the share of them"),
    "liar": _rate("it claims more than it shows", _FLEET, 10.0, "by this factor", 1e6),
    "provider_down": Kind("a provider's machines are gone", ("provider",)),
    "validator_link": _rate("its own link has a share of its rate", ("validator",), 0.3),
    "storage_limit": _rate("the storage gives no transfer more than a share of the fastest link", _STORAGE, 0.3),
    "diurnal": _rate("links swing over the day, each region by its own clock", ("miners",), 0.2, "the swing"),
}
"""Faults of rates, breaks and claims, for ``--health`` only: there nothing else is played."""


@dataclass(frozen=True)
class Target:
    """Whom a fault meets."""

    kind: str
    """miner, group, provider, share, miners, validator, leader, storage, chain or lease."""
    number: float = 0.0
    """Of the miner, group, provider or validator, or the share."""


@dataclass(frozen=True)
class Moment:
    """When a phase of a round begins."""

    round: RoundId
    phase: str


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    target: Target
    start: float | Moment
    duration_s: float
    size: float


def read_scenario(path: Path) -> tuple[Fault, ...]:
    """The faults in a file. Raises OperatorError, naming the file."""
    try:
        if path.stat().st_size > MAX_SCENARIO_BYTES:
            raise OperatorError(f"{path} is larger than {MAX_SCENARIO_BYTES >> 20} MiB: no scenario")
        data = path.read_bytes()
    except OSError as error:
        raise OperatorError(f"the scenario {path} can't be read: {error.strerror or error}") from None
    try:
        return parse_scenario(data)
    except OperatorError as error:
        raise OperatorError(f"the scenario {path}: {error}") from None


def parse_scenario(data: bytes) -> tuple[Fault, ...]:
    """Faults from foreign bytes. Raises OperatorError and nothing else."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"it is not TOML: {str(error)[:120]}") from None
    _no_others(table, {"fault"}, "the file")
    faults = table.get("fault", [])
    if not isinstance(faults, list) or len(faults) > MAX_FAULTS:
        raise OperatorError(f"faults are up to {MAX_FAULTS} tables that begin with [[fault]]")
    return tuple(_fault(item, f"fault {place + 1}") for place, item in enumerate(faults))


def explain_kinds() -> str:
    """How to write a scenario, and one line for each kind; for people."""
    lines = [f"{name}: {_explain(kind)}" for name, kind in KINDS.items()]
    rates = [f"{name}: {_explain(kind)}" for name, kind in RATES.items()]
    return "\n".join((_EXAMPLE, *lines, "", "With --health, and only there:", *rates))


def _explain(kind: Kind) -> str:
    sizes = f"; size: {kind.sizes}, {kind.size:g}" if kind.sizes else ""
    lasts = "" if kind.duration_s == FOREVER else f"; duration {kind.duration_s:g} s"
    whom = "" if kind.targets == _MINERS else f"; target: {', '.join(kind.targets)}"
    needs = "; needs --validators 2 or more" if kind.standbys else ""
    needs += "; needs --reduce butterfly" if kind.owners else ""
    return f"{kind.what}{sizes}{lasts}{whom}{needs}"


def _fault(item: object, where: str) -> Fault:
    if not isinstance(item, dict):
        raise OperatorError(f"{where} must be a table")
    _no_others(item, {"kind", "target", "start", "duration", "size"}, where)
    name = item.get("kind")
    if not isinstance(name, str) or name not in KINDS | RATES:
        raise OperatorError(f"{where}: kind must be one of {', '.join(KINDS | RATES)}")
    kind = (KINDS | RATES)[name]
    if "size" in item and not kind.sizes:
        raise OperatorError(f"{where}: size means nothing for {name}")
    duration_s, size = _number(item, "duration", kind.duration_s, where), _number(item, "size", kind.size, where)
    if size > kind.most:
        raise OperatorError(f"{where}: size is {kind.sizes}: at most {kind.most:g}")
    return Fault(
        kind=name,
        target=_target(item.get("target"), kind, f"{where} ({name})"),
        start=_start(item.get("start"), where),
        duration_s=duration_s,
        size=size,
    )


def _target(value: object, kind: Kind, where: str) -> Target:
    if value is None and len(kind.targets) == 1:
        return Target(kind.targets[0])
    name, _, number = value.partition(":") if isinstance(value, str) else ("", "", "")
    if name not in kind.targets:
        raise OperatorError(f"{where}: target must be one of {', '.join(_FORMS.get(t, t) for t in kind.targets)}")
    if name in ("miners", "leader", "storage", "chain", "lease") or value == "validator":
        if number:
            raise OperatorError(f"{where}: target {name} has no number")
        return Target(name)
    try:
        found = float(number)
    except ValueError:
        raise OperatorError(f"{where}: target {name} needs a number, as in {name}:1") from None
    good = 0 < found <= 1 if name == "share" else 0 <= found < 1e6 and found == int(found)
    if not good:
        raise OperatorError(f"{where}: {'a share lies in (0, 1]' if name == 'share' else 'a number counts from 0'}")
    return Target(name, found)


def _start(value: object, where: str) -> float | Moment:
    if isinstance(value, dict):
        _no_others(value, {"round", "phase"}, f"{where}: start")
        round_id, phase = value.get("round"), value.get("phase", "open")
        if type(round_id) is not int or round_id < 0 or phase not in PHASES:
            raise OperatorError(f"{where}: start names a round from 0 on and a phase of {', '.join(PHASES)}")
        return Moment(RoundId(round_id), phase)
    return _number({"start": value}, "start", 0.0, where)


def _number(table: Mapping[str, object], name: str, default: float, where: str) -> float:
    value = table.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise OperatorError(f"{where}: {name} must be a number from 0 on")
    return float(value)


def _no_others(table: Mapping[str, object], known: set[str], where: str) -> None:
    strangers = sorted(table.keys() - known)
    if strangers:
        raise OperatorError(f"{where}: unknown {', '.join(strangers)[:100]}; known are {', '.join(sorted(known))}")
