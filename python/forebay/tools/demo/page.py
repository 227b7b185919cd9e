"""The demo's page: one HTML file, styles and pictures inside, nothing fetched from anywhere.

`page.html` beside this module holds the words and the styles with ``$names``; the pictures are SVG
drawn here: stacked bars of where the wall time of each epoch went, bars of the counters, loss
curves. Words that depend on what the ranks read from, an emulated file system or a disk, are here.
Colours are CSS variables, so the page follows the reader's choice of light or dark.
"""

from __future__ import annotations

import html
import importlib.resources
import os
import platform
import string
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.tools.demo.results import LATE, PHASES, STARTUP, storage_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from forebay.tools.demo.results import Figure, Outcome, RunResult

_WIDTH = 940
_CURVE_POINTS = 240
_LOSS_TICKS = (3, 1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_PICTURED = ("thread_faults", "minor_faults", "storage_bytes", "cpu_seconds", "thread_switches", "switches")
_PICTURED_PFS = ("pfs_reads", "pfs_read_bytes", "pfs_mean_read_bytes", "pfs_max_in_flight")

_COLD_DISK = "the file is dropped from the page cache before"
_COLD_PFS = (
    "before it the page cache of the emulated node is emptied. What the emulator serves is read into this machine’s "
    "memory first, so that its disk plays no part"
)
_FAULTS_DISK = (
    "On a parallel file system every major fault is a small request; that is where skipping hurts most, and what a local "
    "disk with a large read-ahead window does not show."
)
_FAULTS_PFS = (
    "Here all ranks share one node, so that what one of them has fetched is there for the others, and the second epoch "
    "comes from the node’s page cache where that is large enough. <code>forebay bench --nodes</code> gives each rank a node "
    "of its own."
)
_PFS_SECTION = """
<section>
<h2>What reached the file system</h2>
<p class="soft">Counted by the emulator over each whole run, page faults of py-lmdb’s mapping included; each row has its own
scale. Forebay’s sequential run also reads the index out of the file, once, in small requests side by side; the group run finds
it made.</p>
{bars}
{legend}
</section>
"""


def render(outcome: Outcome) -> str:
    """Make the page."""
    runs = outcome.runs
    template = string.Template(
        importlib.resources.files("forebay.tools.demo").joinpath("page.html").read_text("utf-8")
    )
    explain = html.escape(runs[-1].facts.get("explain", ""))
    summary = "<summary>What Forebay chose, in its own words</summary>"
    return template.substitute(
        ranks=outcome.ranks,
        samples=f"{outcome.samples:,}",
        file_mb=f"{outcome.file_bytes / 1e6:,.0f}",
        storage="the local disk" if outcome.pfs is None else f"an emulated {_name(outcome.pfs)} file system",
        cards=_cards(outcome),
        time_bars=_time_bars(runs),
        time_legend=_legend((_phase_colour(key), name) for key, name, _ in (STARTUP, *PHASES)),
        caveat=html.escape(outcome.caveat()),
        late="" if not outcome.late else f'<p class="note bad">{html.escape(LATE)}</p>',
        pfs_section=_pfs_section(outcome),
        counter_bars=_bars_of(_PICTURED, outcome),
        run_legend=_run_legend(runs),
        base=html.escape(runs[0].title),
        same=html.escape(runs[1].title),
        tone="good" if outcome.identical else "bad",
        verdict=html.escape(outcome.verdict()),
        curves=_curves(runs),
        table_head="".join(f"<th>{html.escape(run.title)}</th>" for run in runs),
        table_body=_table_body(outcome),
        cold=_COLD_DISK if outcome.pfs is None else _COLD_PFS,
        faults=_FAULTS_DISK if outcome.pfs is None else _FAULTS_PFS,
        storage_line=html.escape(storage_line(outcome.pfs, outcome.pfs_reason).removeprefix("storage: ")),
        options=" --no-pfs" if outcome.pfs is None else f" --pfs {_name(outcome.pfs)}",
        machine=html.escape(platform.platform()),
        cores=len(os.sched_getaffinity(0)),
        batch_size=outcome.batch_size,
        epochs=outcome.epochs,
        explain=f"<details>{summary}<pre>{explain}</pre></details>" if explain else "",
    )


def _name(pfs: dict[str, Any]) -> str:
    return html.escape(str(pfs["spec"]["name"]))


def _cards(outcome: Outcome) -> str:
    base, same, group = outcome.runs
    cards = (
        (
            "identical" if outcome.identical else "different",
            "good" if outcome.identical else "bad",
            f"losses of py-lmdb and Forebay in the same order, bit for bit, over {len(base.losses):,} steps",
        ),
        _storage_card(outcome),
        (
            f"{_faults(same):,.0f}",
            "",
            f"page faults stopped a training step for data with Forebay, {_faults(base):,.0f} with py-lmdb, same order",
        ),
        (
            f"{100 * group.accuracy:.1f} %",
            "",
            f"right on {outcome.held_out_samples} held-out images after group order, "
            f"{100 * same.accuracy:.1f} % after sequential",
        ),
    )
    return "".join(
        f'<div class="card"><b class="{tone}">{html.escape(value)}</b>'
        f'<span class="soft">{html.escape(text)}</span></div>'
        for value, tone, text in cards
    )


def _storage_card(outcome: Outcome) -> tuple[str, str, str]:
    base, same, _ = outcome.runs
    if outcome.pfs is None:
        fetched = [run.total("storage_bytes") / outcome.file_bytes for run in (base, same)]
        return (
            f"{fetched[1]:.2f}×",
            "",
            f"the file was fetched from storage by Forebay, {fetched[0]:.2f}× by py-lmdb (all epochs)",
        )
    return (
        f"{same.training_seconds():.2f} s",
        "",
        f"for start-up and {outcome.epochs} epochs, the first one cold, with Forebay; "
        f"{base.training_seconds():.2f} s with py-lmdb, same order",
    )


def _pfs_section(outcome: Outcome) -> str:
    if outcome.pfs is None:
        return ""
    return _PFS_SECTION.format(bars=_bars_of(_PICTURED_PFS, outcome), legend=_run_legend(outcome.runs))


def _bars_of(keys: Sequence[str], outcome: Outcome) -> str:
    return "".join(_counter_bars(figure, outcome.runs) for figure in outcome.figures() if figure.key in keys)


def _run_legend(runs: Sequence[RunResult]) -> str:
    return _legend((f"var(--run{i})", run.title) for i, run in enumerate(runs))


def _faults(run: RunResult) -> float:
    return run.thread("minor_faults") + run.thread("major_faults")


def _time_bars(runs: Sequence[RunResult]) -> str:
    """Stacked horizontal bars, one per run and epoch; the start-up is a part of the first epoch's."""
    left, width, height, gap, between = 250, 615, 24, 4, 20
    bars = [(run, epoch) for run in runs for epoch in range(len(run.accuracies))]
    longest = max(sum(seconds for *_, seconds in _parts(run, epoch)) for run, epoch in bars)
    scale = width / max(longest, 1e-9)
    parts: list[str] = []
    y = 0.0
    for run, epoch in bars:
        if epoch == 0:
            y += between if parts else 0
            parts.append(_text(0, y + height / 2 + 5, run.title))
        x, middle = float(left), y + height / 2 + 5
        parts.append(_text(left - 10, middle, f"epoch {epoch + 1}", 'class="soft" text-anchor="end"'))
        for key, name, seconds in _parts(run, epoch):
            long = max(seconds * scale, 0)
            parts.append(
                _bar(x, y, long, height, _phase_colour(key), f"{run.title}, {name}: {seconds:.3f} s")
            )
            if long > 46:
                style = 'text-anchor="middle" style="fill:var(--card)"'
                parts.append(_text(x + long / 2, middle, f"{seconds:.2f}", style))
            x += long
        parts.append(_text(x + 8, middle, f"{(x - left) / scale:.2f} s", 'class="soft"'))
        y += height + gap
    return _picture(y - gap, "Stacked bars of the wall time", parts)


def _parts(run: RunResult, epoch: int) -> list[tuple[str, str, float]]:
    """Give key, name and seconds of what a bar is made of."""
    phases = PHASES if epoch else (STARTUP, *PHASES)
    return [(key, name, run.phase(key, epoch)) for key, name, _ in phases]


def _counter_bars(figure: Figure, runs: Sequence[RunResult]) -> str:
    """One thin bar of one counter per run."""
    left, width, height, gap = 200, 620, 13, 5
    largest = max(*(figure.value(run) for run in runs), 1e-9)
    unit = f" [{figure.unit}]" if figure.unit else ""
    parts = [_text(0, (len(runs) * (height + gap) - gap) / 2 + 5, figure.short + unit)]
    for row, run in enumerate(runs):
        y, long = row * (height + gap), max(width * figure.value(run) / largest, 1)
        parts.append(_bar(left, y, long, height, f"var(--run{row})", run.title))
        parts.append(_text(left + long + 7, y + height - 2, figure.text(run), 'class="soft"'))
    return _picture(len(runs) * (height + gap), figure.title, parts)


def _curves(runs: Sequence[RunResult]) -> str:
    """Loss over step on a logarithmic scale; the second run is dashed, so that the first shows through."""
    left, top, width, height = 46, 8, 870, 260
    smooth = [_smooth(run.losses) for run in runs]
    lowest = max(min(float(values.min()) for _, values in smooth), 1e-6)
    low = float(np.log10(lowest))
    span = max(float(np.log10(max(float(values.max()) for _, values in smooth))) - low, 1e-6)
    steps = max(int(at[-1]) for at, _ in smooth) or 1

    def x(step: float) -> float:
        return left + width * step / steps

    def y(loss: float) -> float:
        return top + height * (1 - (float(np.log10(max(loss, lowest))) - low) / span)

    parts = []
    for tick in _LOSS_TICKS:
        if low <= np.log10(tick) <= low + span:
            at = y(tick)
            line = f'x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}"'
            parts.append(f'<line class="grid" {line}/>')
            parts.append(_text(left - 8, at + 4, f"{tick:g}", 'class="soft" text-anchor="end"'))
    for share, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end")):
        label = f"{round(steps * share):,}" if share else "step 0"
        style = f'class="soft" text-anchor="{anchor}"'
        parts.append(_text(x(steps * share), top + height + 20, label, style))
    for i, (at_steps, values) in enumerate(smooth):
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(at_steps, values, strict=True))
        look = ('style="stroke-width:4"', 'stroke-dasharray="7 6"', "")[min(i, 2)]
        parts.append(f'<polyline class="curve" points="{points}" stroke="var(--run{i})" {look}/>')
    return _picture(top + height + 28, "Loss curves", parts)


def _smooth(losses: Sequence[float]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Give steps and moving means, thinned to what a screen can show."""
    values = np.asarray(losses)
    window = max(1, len(values) // 100)
    means = np.convolve(values, np.ones(window) / window, mode="valid")
    chosen = np.unique(np.linspace(0, len(means) - 1, min(len(means), _CURVE_POINTS)).astype(np.int64))
    return chosen + window // 2, means[chosen]


def _table_body(outcome: Outcome) -> str:
    figures = outcome.figures()
    groups = (
        ("Counted by the emulated file system", [one for one in figures if one.emulated]),
        (
            "Counted by the kernel",
            [one for one in figures if one.counter and not one.emulated and one.key != "accuracy"],
        ),
        ("The model", [one for one in figures if one.key == "accuracy"]),
        ("Times", [one for one in figures if not one.counter]),
    )
    rows = []
    for title, members in groups:
        if members:
            rows.append(f'<tr class="group"><td colspan="{len(outcome.runs) + 1}">{title}</td></tr>')
        for figure in members:
            cells = "".join(f"<td>{figure.text(run)}</td>" for run in outcome.runs)
            name = f"{figure.short}, {figure.unit}" if figure.unit else figure.short
            rows.append(f"<tr><td>{name}<small>{html.escape(figure.meaning)}</small></td>{cells}</tr>")
    return "".join(rows)


def _phase_colour(key: str) -> str:
    return f"var(--{key.removesuffix('_seconds')})"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = [
        f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for colour, name in entries
    ]
    return f'<div class="legend">{"".join(items)}</div>'


def _text(x: float, y: float, text: Any, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(str(text))}</text>'


def _bar(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} fill="{colour}"><title>{html.escape(title)}</title></rect>'


def _picture(height: float, label: str, parts: Iterable[str]) -> str:
    box = f'viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{html.escape(label)}"'
    return f'<div class="scroll"><svg {box}>{"".join(parts)}</svg></div>'
