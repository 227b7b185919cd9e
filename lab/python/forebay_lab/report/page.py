"""The page around the figures: headline, warnings, table, what was run.

`page.html` beside this module holds the frame with ``$names`` and its styles, `pictures.css` those
of the pictures. A content security policy forbids every fetch, so that a page that would need the
network shows that at once.
"""

from __future__ import annotations

import importlib.resources
import os
import shlex
import string
from typing import TYPE_CHECKING, Any

from forebay_lab.report import demo, numbers, table
from forebay_lab.report.data import dicts, number
from forebay_lab.report.figures import FIGURES, Missing
from forebay_lab.report.figures.limit import limits
from forebay_lab.report.svg import escape, styles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay_lab.report.data import Result, Row

__all__ = ["render"]


def render(result: Result) -> str:
    """Make the page."""
    template = string.Template(
        importlib.resources.files("forebay_lab.report").joinpath("page.html").read_text("utf-8")
    )
    title, lead, cards, facts = {
        "bench": (_bench_title, _bench_lead, _bench_cards, _bench_facts),
        "simulated": (_bench_title, _bench_lead, _bench_cards, _bench_facts),
        "demo": (lambda _: demo.TITLE, demo.lead, demo.cards, demo.facts),
        "events": (_events_title, _events_lead, _events_cards, _events_facts),
    }[result.kind]
    return template.substitute(
        styles=styles().rstrip("\n"),
        title=escape(title(result)),
        lead=escape(lead(result)),
        cards="".join(_card(*one) for one in cards(result)),
        warnings=_warnings(result),
        figures="".join(_figures(result)),
        tables="".join(_tables(result)),
        run=_pairs(facts(result)),
        command=_command(result),
    )


def _figures(result: Result) -> Iterator[str]:
    for figure in FIGURES:
        if result.kind not in figure.kinds:
            continue
        drawn = figure.draw(result)
        if isinstance(drawn, Missing):
            yield _section(figure.id, figure.title, drawn.why, "", "missing")
        else:
            yield _section(figure.id, figure.title, drawn.lead, drawn.html, "figure")


def _section(key: str, title: str, lead: str, inside: str, style: str = "") -> str:
    head = f'<h2>{escape(title)}</h2><p class="soft lead">{escape(lead)}</p>'
    return f'<section id="{key}" class="{style}">{head}{inside}</section>'


def _tables(result: Result) -> Iterator[str]:
    if result.kind == "events":
        yield _section(
            "nodes", "Nodes", "What each node asked for, from all events.", table.nodes_table(result)
        )
        yield _section(
            "files", "Files", "The files that most bytes were asked of.", table.files_table(result)
        )
        return
    if result.kind == "demo":
        lead = f"Times are means over the ranks, counts are sums over all ranks and epochs. {demo.caveat(result.values)}"
        yield _section("rows", "All figures", lead, table.rows_table(result))
        yield _section("method", "What was done", "", demo.method(result))
        return
    if result.drawn:
        repetitions = max(len(row.repetitions) for row in result.rows)
        lead = (
            f"Medians of {_many(repetitions, 'repetition')}; below each, where it is not 0, the spread: largest less smallest, "
            "over the median. The best of a line is bold. Counts are sums over all ranks."
        )
        yield _section("rows", "All figures", lead, table.rows_table(result))
    if any(len(dicts(row.shown.get("by_epoch"))) > 1 for row in result.drawn):
        lead = (
            "Times and counters of the file system, epoch by epoch, of the repetition that the pictures show."
        )
        yield _section("epochs", "By epoch", lead, table.epochs_table(result.drawn))
    failed = [row for row in result.rows if not row.ok]
    if failed:
        items = "".join(
            f'<h3 class="bad">{escape(row.name)}: {escape(row.status if row.status != "ok" else "no repetition")}</h3>'
            f"<pre>{escape(row.error or 'no message')}</pre>"
            for row in failed
        )
        yield _section("failed", "Rows without a result", "The other rows are not touched by this.", items)


# What a bench says.


def _bench_title(result: Result) -> str:
    if result.part("workload").get("name"):
        return f"Bench of the workload {result.part('workload')['name']}"
    path = str(result.part("dataset").get("path") or "")
    return f"Bench of {os.path.basename(path.rstrip('/')) or path or 'a dataset'}"  # noqa: PTH119 - a name, not a path here


def _bench_lead(result: Result) -> str:
    values = result.values
    ranks, nodes = number(values.get("ranks")), number(values.get("nodes"))
    parts = [_many(len(result.rows), "row")]
    if ranks:
        parts.append(_many(ranks, "rank") + (f" on {_many(nodes, 'node')}" if nodes else ""))
        if emulated := result.part("node_emulation").get("by"):
            parts[-1] += f" (emulated by {emulated})"
    job = number(values.get("world_size"))
    if job and job != ranks:
        parts[-1] += f", walking as {_many(ranks or 0, 'rank')} of a job of {job:,.0f}"
    for key, one in (("steps", "step"), ("epochs", "epoch"), ("repetitions", "repetition")):
        if many := number(values.get(key)):
            parts.append(_many(many, one))
    if batch := number(values.get("batch_size")):
        parts.append(f"{_many(batch, 'sample')} per rank and step")
    compute = number(values.get("compute_seconds"))
    parts.append(f"{numbers.text('seconds', compute)} of compute per step" if compute else "no compute")
    parts.append("cold" if values.get("cold") else "page cache as it was")
    sentence = ", ".join(parts) + "."
    pfs = result.part("pfs")
    if pfs:
        name = (pfs.get("spec") or {}).get("name") if isinstance(pfs.get("spec"), dict) else None
        time_scale = number(pfs.get("time_scale")) or 1.0
        sentence += f" File system: {name or 'emulated'}, emulated"
        sentence += (
            f"; all times are model seconds, the machine took {numbers.digits(time_scale)} times as long."
            * (time_scale != 1)
        )
        sentence += "." * (time_scale == 1)
    return sentence


def _bench_cards(result: Result) -> Iterator[tuple[str, str, str]]:
    def best(key: str, rows: Iterable[Row]) -> tuple[float, Row] | None:
        found = [
            (one, at, row) for at, row in enumerate(rows) if (one := number(row.median.get(key))) is not None
        ]
        return (max(found)[0], max(found)[2]) if found else None

    fastest = best("samples_per_second", result.drawn)
    if fastest:
        rate, row = fastest
        second = best("samples_per_second", [one for one in result.drawn if one is not row])
        more = (
            f", {numbers.digits(rate / second[0])} × the next, {second[1].name}"
            if second and second[0]
            else ""
        )
        yield f"{numbers.digits(round(rate, 1))}", "", f"samples/s with {row.name}{more}"
    reached = best("rate_mib_s", result.drawn)
    known = limits(result)
    if reached and known:
        name, limit, _ = known[0]
        yield (
            numbers.percent(reached[0] / limit),
            "",
            f"of the {name} limit, {numbers.text('rate', limit)}, reached by {reached[1].name}",
        )
    busy = best("accelerator_utilisation", result.drawn)
    if busy and number(result.values.get("compute_seconds")):
        yield numbers.percent(busy[0], 1), "", f"accelerator utilisation with {busy[1].name}"
    verified = [one for one in result.values.get("verified") or [] if isinstance(one, dict)]
    if verified:
        good = all(one.get("equal") for one in verified)
        yield (
            "identical" if good else "different",
            "good" if good else "bad",
            "samples of rows in the same order, step by step, and of all rows over an epoch, by checksum",
        )


def _bench_facts(result: Result) -> Iterator[tuple[str, str]]:
    dataset, machine, pfs = (result.part(key) for key in ("dataset", "machine", "pfs"))
    if dataset:
        size, mean = number(dataset.get("bytes")), number(dataset.get("mean_bytes"))
        yield (
            "Dataset",
            ", ".join(
                filter(
                    None,
                    (
                        str(dataset.get("path") or ""),
                        str(dataset.get("format") or ""),
                        f"{number(dataset.get('samples')) or 0:,.0f} samples",
                        numbers.text("bytes", size) if size else "",
                        f"{numbers.text('bytes', mean)} each in the mean" if mean else "",
                    ),
                )
            ),
        )
    workload = result.part("workload")
    if workload:
        scale = numbers.digits(number(workload.get("scale")) or 1.0)
        yield "Workload", f"{workload.get('name')}, variant {workload.get('variant')}, scale {scale}"
    if pfs:
        yield "File system", f"emulated; {_spec_text(pfs.get('spec'))}"
        yield "Time scale", f"{numbers.digits(number(pfs.get('time_scale')) or 1.0)}"
    if machine:
        memory = number(machine.get("memory_bytes"))
        yield (
            "Machine",
            ", ".join(
                filter(
                    None,
                    (
                        f"{number(machine.get('cores')) or 0:.0f} cores",
                        numbers.text("bytes", memory) if memory else "",
                        str(machine.get("kernel") or ""),
                        f"load {machine['load']}" if machine.get("load") is not None else "",
                    ),
                )
            ),
        )
    if result.values.get("launcher"):
        yield (
            "Ranks",
            {"mpi": "under MPI"}.get(str(result.values["launcher"]), str(result.values["launcher"])),
        )
    for one in result.values.get("verified") or []:
        if isinstance(one, dict):
            names = ", ".join(str(name) for name in one.get("rows") or [])
            what = {"steps": "step by step", "epoch": "over an epoch, in any order"}.get(
                str(one.get("what")), str(one.get("what"))
            )
            yield (
                "Verified" if one.get("equal") else "Not verified",
                f"{names}: {'equal' if one.get('equal') else 'different'} {what}",
            )
    if result.values.get("time"):
        yield "When", str(result.values["time"])
    yield "Forebay", str(result.values.get("forebay") or "unknown version")


def _spec_text(spec: object) -> str:
    if not isinstance(spec, dict):
        return "numbers not given"
    parts = [str(spec.get("name") or "without a name")]
    targets, rate = number(spec.get("targets")), number(spec.get("target_bytes_per_second"))
    if targets and rate:
        parts.append(f"{_many(targets, 'target')} of {numbers.text('rate', rate / 2**20)}")
    for key, what in (("latency_us", "latency"), ("seek_us", "seek")):
        if (one := number(spec.get(key))) is not None:
            parts.append(f"{what} {numbers.text('seconds', one / 1e6)}")
    stripe, count = number(spec.get("stripe_bytes")), number(spec.get("stripe_count"))
    if stripe:
        parts.append(
            f"stripes of {numbers.text('bytes', stripe)}"
            + (f" over {_many(count, 'target')}" if count else "")
        )
    return ", ".join(parts)


# What an event log says.


def _events_title(result: Result) -> str:
    spec = result.part("spec")
    return f"Requests to {spec['name']}" if spec.get("name") else "Requests to an emulated file system"


def _events_lead(result: Result) -> str:
    count, nodes, files = result.rows[0].event_count, len(result.nodes), len(result.files)
    time_scale = number(result.values.get("time_scale")) or 1.0
    stretched = f"; the machine took {numbers.digits(time_scale)} times as long" * (time_scale != 1)
    what = f"{_many(count, 'request')} of {_many(nodes, 'node')} for {_many(files, 'file')}"
    return f"{what}. Times are model seconds{stretched}."


def _events_cards(result: Result) -> Iterator[tuple[str, str, str]]:
    count = result.rows[0].event_count
    if not count:
        return
    size = sum(node.read_bytes for node in result.nodes.values())
    sequential = sum(node.sequential_reads for node in result.nodes.values())
    yield f"{count:,}", "", "read requests reached the file system"
    yield (
        numbers.text("bytes", size),
        "",
        f"asked for, {numbers.text('bytes', size / count)} in the mean request",
    )
    yield (
        numbers.percent(sequential / count),
        "",
        "began where the same node's last request of that file ended, or at its start",
    )


def _events_facts(result: Result) -> Iterator[tuple[str, str]]:
    yield "File system", f"emulated; {_spec_text(result.values.get('spec'))}"
    yield "Time scale", numbers.digits(number(result.values.get("time_scale")) or 1.0)


# Parts of both.


def _warnings(result: Result) -> str:
    found = list(result.warnings)
    late = [row for row in result.rows if row.late]
    if result.kind == "demo":
        found += demo.late(late)
        late = []
    found += [
        f"{row.name}: in {row.late} of {_many(len(row.repetitions), 'repetition')} the emulator replied later than modelled; "
        "its times are not to be trusted."
        for row in late
    ]
    if not found:
        return ""
    items = "".join(f"<li>{escape(one)}</li>" for one in dict.fromkeys(found))
    return f'<section id="warnings" class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>'


def _command(result: Result) -> str:
    command: Any = result.values.get("command")
    if not isinstance(command, list) or not command:
        return ""
    return f'<pre id="command">{escape(shlex.join(str(one) for one in command))}</pre>'


def _card(value: str, tone: str, text: str) -> str:
    return f'<div class="card"><b class="{tone}">{escape(value)}</b><span class="soft">{escape(text)}</span></div>'


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs) + "</dl>"
    )


def _many(count: float, one: str) -> str:
    return f"{count:,.0f} {one}" + "s" * (round(count) != 1)
