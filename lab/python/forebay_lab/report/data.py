"""The input of figures: a bench result, a demo result or an event log, checked, in one form.

A bench result has rows; each was repeated, and its pictures show the repetition whose total time is
the median. An event log of the emulator becomes a result of one row, whose request sizes are
counted from all events, while the picture over time shows an evenly thinned part of them. A run of
the demo is a row with one repetition.

What is missing or null is empty here, and the figure says so; what is there and of another type
than docs/metrics.md says is an error that names the key.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import msgspec

from forebay._core import FormatError, StorageError
from forebay_lab.checked import convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "DEMO_VERSION",
    "EVENTS_SHOWN",
    "RESULT_VERSION",
    "Event",
    "NodeEvents",
    "Result",
    "Row",
    "from_bench",
    "from_demo",
    "from_events",
    "from_json",
    "read",
]

EVENTS_SHOWN = 4000
"""Events of a picture over time: as many as a screen tells apart, and 60 kB of the page."""


EVENTS_VERSION = 2
"""Of the header of an event log (docs/pfs.md). Version 1 had other keys."""
RESULT_VERSION = 3
"""Version of the keys of a bench result (docs/metrics.md)."""
_RESULT_VERSIONS = (2, RESULT_VERSION)
"""Those that are read: version 2 lacks what was simulated. Version 1 had other names."""
DEMO_VERSION = 2
"""Of the keys of a demo result (docs/metrics.md). Version 1 had no key `version`, and no ranks."""


_COMMANDS = {"bench": "bench", "simulated": "simulate", "demo": "demo"}
"""Kind of a result → the command that writes it."""


class Event(NamedTuple):
    """One read request that reached the file system."""

    time_s: float
    node: int
    file: str
    offset: int
    length: int
    latency_s: float


@dataclass(slots=True)
class NodeEvents:
    """What one node asked for, from an event log."""

    reads: int = 0
    read_bytes: int = 0
    sequential_reads: int = 0
    latencies_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a bench: a strategy in an order."""

    name: str
    status: str
    error: str
    repetitions: list[dict[str, Any]]
    median: dict[str, Any]
    spread: dict[str, Any]
    shown: dict[str, Any]
    """The repetition that pictures show: its total time is the median. Empty where none ended."""
    events: list[Event]
    event_count: int
    """Events of which those are a part."""
    sizes: dict[int, int]
    """Request size to number of requests, at the file system."""
    shuffle_quality: dict[str, Any]
    """How well the order shuffles; empty where the row does not tell."""
    late: int
    """Repetitions in which the emulator replied later than modelled."""

    @property
    def ok(self) -> bool:
        """Whether there is something to draw."""
        return self.status == "ok" and bool(self.shown)

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Ranks of the repetition shown."""
        return dicts(self.shown.get("ranks"))

    @property
    def readers(self) -> list[dict[str, Any]]:
        """Readers of the repetition shown."""
        return dicts(self.shown.get("readers"))

    @property
    def pfs(self) -> dict[str, Any]:
        """The file system's counters of the shown repetition; empty if it is not emulated."""
        found = self.shown.get("pfs")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Result:
    """All that a page shows."""

    kind: str
    """`bench`, `simulated`, `demo` or `events`."""
    values: Mapping[str, Any]
    """The object that the command printed; for an event log its header."""
    rows: list[Row]
    warnings: list[str]
    nodes: dict[int, NodeEvents] = field(default_factory=dict)
    """Only of an event log."""
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """File to (reads, bytes); only of an event log."""

    @property
    def drawn(self) -> list[Row]:
        """Rows that have something to draw."""
        return [row for row in self.rows if row.ok]

    def part(self, key: str) -> dict[str, Any]:
        """Return an object of the result, empty where it is null."""
        found = self.values.get(key)
        return found if isinstance(found, dict) else {}


_Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class _RowForm(msgspec.Struct):
    """What a row of a bench result must be; what is null or missing is empty."""

    name: str
    repetitions: list[dict[str, Any]] | None = None
    median: dict[str, Any] | None = None
    spread: dict[str, Any] | None = None


class _BenchForm(msgspec.Struct):
    """What a bench result must be."""

    rows: list[_RowForm]
    warnings: list[Any] | None = None


class _DemoPfsForm(msgspec.Struct):
    """The emulated file system of a demo result."""

    spec: dict[str, Any]
    time_scale: float
    limit_mib_s: float


class _RunForm(msgspec.Struct):
    """What a run of a demo result must be."""

    title: str
    losses: list[_Finite]
    accuracies: list[_Finite]


class _DemoForm(msgspec.Struct):
    """What a demo result must be."""

    runs: Annotated[list[_RunForm], msgspec.Meta(min_length=2)]
    pfs: _DemoPfsForm | None = None


def _refuse(name: str, key: str, expected: str, found: object) -> NoReturn:
    raise FormatError(f"report of {name}: key {key}: expected {expected}, found {_short(found)}")


def number(value: object) -> float | None:
    """Return a finite number, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def read(path: Path) -> Result:
    """Read a bench or demo result (JSON) or an event log (JSON lines), detected by the first line.

    Raises
    ------
    StorageError
        If it cannot be read.
    FormatError
        If it is neither; the message names file and line or key.
    """
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
            if _is_event_header(first):
                return from_events(first, file, str(path))
            text = first + file.read()
    except OSError as error:
        raise StorageError(
            f"report of {path}: {error.strerror or error}", errno=error.errno, filename=path
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(
            f"report of {path}: expected text, found byte {error.object[error.start]:#04x}"
        ) from error
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"report of {path}: line {error.lineno}: expected the JSON of `forebay bench --json` or an event log, "
            f"found: {error.msg}"
        ) from error
    result = from_json(values, str(path))
    expected = (DEMO_VERSION,) if result.kind == "demo" else _RESULT_VERSIONS
    if (version := values.get("version")) not in expected:
        raise FormatError(
            f"report of {path}: key version: expected {' or '.join(map(str, expected))}, found {_short(version)}\n"
            "hint: another version of Forebay wrote this result, with other keys; "
            f"run `forebay {_COMMANDS[result.kind]}` again"
        )
    return result


def from_json(values: object, name: str) -> Result:
    """Check the object that `forebay bench --json` or `forebay demo --json` prints.

    Raises
    ------
    FormatError
        If it is neither; the message names the key.
    """
    is_demo = isinstance(values, dict) and "losses_identical" in values
    return from_demo(values, name) if is_demo else from_bench(values, name)


def from_bench(values: object, name: str) -> Result:
    """Check a bench result.

    Raises
    ------
    FormatError
        If it is not one; the message names the key.
    """
    if not isinstance(values, dict):
        raise FormatError(
            f"report of {name}: expected the object that `forebay bench --json` prints, found {_short(values)}"
        )
    form = convert(values, _BenchForm, functools.partial(_refuse, name))
    rows = [
        _row(row, one.repetitions or [], f"{name}: key rows[{at}]")
        for at, (row, one) in enumerate(zip(values["rows"], form.rows, strict=True))
    ]
    kind = "simulated" if isinstance(values.get("simulated"), dict) else "bench"
    return Result(kind, values, rows, [str(one) for one in form.warnings or []])


def from_demo(values: object, name: str) -> Result:
    """Check a result of the demo; each of its runs becomes a row.

    Raises
    ------
    FormatError
        If it is not one; the message names the key.
    """
    convert(values, _DemoForm, functools.partial(_refuse, name))
    assert isinstance(values, dict)
    runs = values["runs"]
    pfs = values.get("pfs")
    if pfs is not None and number(pfs["spec"].get("latency_us")) is None:
        _refuse(name, "pfs.spec.latency_us", "a number", pfs["spec"].get("latency_us"))
    rows = []
    for at, run in enumerate(runs):
        where = f"{name}: key runs[{at}]"
        given = run.get("pfs")
        counted: dict[str, Any] = given if isinstance(given, dict) else {}
        one = {
            **run,
            "pfs": {"nodes": [counted]} if counted else None,
            "missed_deadlines": bool(counted.get("missed_deadlines")),
        }
        rows.append(_row({"name": run["title"], "median": _flat(run, counted)}, [one], where))
    return Result("demo", values, rows, [])


def _flat(run: dict[str, Any], pfs: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run of the demo under the keys of `columns.DEMO`."""
    thread = run.get("training_thread")
    found = {
        **run,
        **{
            f"training_thread_{key}": one for key, one in (thread if isinstance(thread, dict) else {}).items()
        },
    }
    found |= {f"pfs_{key}": one for key, one in pfs.items()}
    for whole, parts in (
        ("training_thread_faults", ("training_thread_minor_faults", "training_thread_major_faults")),
        (
            "training_thread_switches",
            ("training_thread_voluntary_switches", "training_thread_involuntary_switches"),
        ),
        ("switches", ("voluntary_switches", "involuntary_switches")),
    ):
        found[whole] = sum(number(found.get(part)) or 0.0 for part in parts)
    if run["accuracies"]:
        found["accuracy"] = run["accuracies"][-1]
    if pfs:
        # The emulator has no block device; its own counters stand for them.
        found["storage_bytes"] = None
    return found


def from_events(header: str, lines: Iterable[str], name: str) -> Result:
    """Read an event log.

    A last line that breaks off, as a killed emulator leaves it, is left out with a warning.

    Raises
    ------
    FormatError
        If the log is of another version, or a line is no event; the message names its number.
    """
    values = json.loads(header)
    if (version := values["forebay_events"]) != EVENTS_VERSION:
        raise FormatError(
            f"report of {name}: key forebay_events: expected {EVENTS_VERSION}, found {_short(version)}\n"
            "hint: another version of Forebay wrote this event log, with other keys"
        )
    sizes: Counter[int] = Counter()
    nodes: defaultdict[int, NodeEvents] = defaultdict(NodeEvents)
    files: dict[str, tuple[int, int]] = {}
    ends: dict[tuple[int, str], int] = {}
    warnings: list[str] = []
    kept: list[Event] = []
    every, count = 1, 0
    for event in _events(lines, name, warnings):
        sizes[event.length] += 1
        node = nodes[event.node]
        node.reads += 1
        node.read_bytes += event.length
        # As the emulator counts: the first read of a file is sequential if it begins at 0.
        node.sequential_reads += ends.get((event.node, event.file), 0) == event.offset
        node.latencies_s.append(event.latency_s)
        ends[event.node, event.file] = event.offset + event.length
        reads, size = files.get(event.file, (0, 0))
        files[event.file] = (reads + 1, size + event.length)
        if count % every == 0:
            kept.append(event)
            if len(kept) == 2 * EVENTS_SHOWN:
                # Every second one goes, and from now on only every second one comes.
                kept = kept[::2]
                every *= 2
        count += 1
    row = Row("events", "ok", "", [], {}, {}, {"events": True}, kept, count, dict(sizes), {}, 0)
    return Result("events", values, [row], warnings, dict(sorted(nodes.items())), files)


def _is_event_header(line: str) -> bool:
    try:
        header = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(header, dict) and "forebay_events" in header


def _events(lines: Iterable[str], name: str, warnings: list[str]) -> Iterator[Event]:
    problem = ""
    for at, line in enumerate(lines, start=2):
        if problem:
            raise FormatError(problem)
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            problem = f"report of {name}: line {at}: expected an event as JSON, found: {error.msg}"
            continue
        yield _event(values, f"{name}: line {at}")
    if problem:
        warnings.append("The last line of the event log breaks off; it is left out.")


def _event(values: object, where: str) -> Event:
    if isinstance(values, list) and len(values) == len(Event._fields):
        time, node, file, offset, length, latency = values
        if (
            all(number(one) is not None for one in (time, latency))
            and all(type(one) is int and one >= 0 for one in (node, offset, length))
            and isinstance(file, str | int)
        ):
            return Event(float(time), node, str(file), offset, length, float(latency))
    raise FormatError(f"report of {where}: expected [{', '.join(Event._fields)}], found {_short(values)}")


def _row(row: dict[str, Any], repetitions: list[dict[str, Any]], where: str) -> Row:
    times = [(time, at) for at, one in enumerate(repetitions) if (time := _time(one)) is not None]
    shown: dict[str, Any] = {}
    if times:
        middle = statistics.median_low(time for time, _ in times)
        shown = repetitions[next(at for time, at in times if time == middle)]
    elif repetitions:
        shown = repetitions[0]
    given = shown.get("events") or []
    if not isinstance(given, list):
        raise FormatError(f"report of {where}.events: expected a list, found {_short(given)}")
    events = [_event(one, f"{where}.events[{at}]") for at, one in enumerate(given)]
    sizes: Counter[int] = Counter()
    pfs = shown.get("pfs")
    for node in dicts(pfs.get("nodes")) if isinstance(pfs, dict) else []:
        for size, count in (node.get("sizes") or {}).items():
            sizes[int(size)] += int(count)
    return Row(
        name=row["name"],
        status=str(row.get("status", "ok")),
        error=str(row.get("error") or ""),
        repetitions=repetitions,
        median=row.get("median") or {},
        spread=row.get("spread") or {},
        shown=shown,
        events=events,
        event_count=max(sum(sizes.values()), len(events)),
        sizes=dict(sizes),
        shuffle_quality=quality if isinstance(quality := row.get("shuffle_quality"), dict) else {},
        late=sum(bool(one.get("missed_deadlines")) for one in repetitions),
    )


def _time(repetition: dict[str, Any]) -> float | None:
    """Return what repetitions are compared by: start-up and wall together."""
    total = number(repetition.get("total_seconds"))
    return number(repetition.get("wall_seconds")) if total is None else total


def dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _short(value: object) -> str:
    if value is None:
        return "nothing"
    text = f"{type(value).__name__} {value!r}" if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
