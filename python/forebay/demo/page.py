"""The demo's page: one HTML file, styles and pictures inside, nothing fetched from anywhere.

`page.html` beside this module holds the words and the styles with ``$names``; the pictures are SVG drawn
here: stacked bars of where the wall time of an epoch went, bars of the counters, loss curves. Colours are CSS
variables, so the page follows the reader's choice of light or dark.
"""

from __future__ import annotations

import html
import importlib.resources
import os
import platform
import string
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.demo.results import FIGURES, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from forebay.demo.results import Figure, Outcome, RunResult

_WIDTH = 940
_CURVE_POINTS = 240
_LOSS_TICKS = (3, 1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_PICTURED = ("thread_faults", "minor_faults", "storage_bytes", "cpu_seconds", "thread_switches", "switches")


def render(outcome: Outcome) -> str:
    """Make the page."""
    runs = outcome.runs
    template = string.Template(
        importlib.resources.files("forebay.demo").joinpath("page.html").read_text("utf-8")
    )
    explain = html.escape(runs[-1].facts.get("explain", ""))
    summary = "<summary>What Forebay chose, in its own words</summary>"
    return template.substitute(
        ranks=outcome.ranks,
        samples=f"{outcome.samples:,}",
        file_mb=f"{outcome.file_bytes / 1e6:,.0f}",
        cards=_cards(outcome),
        time_bars=_time_bars(runs),
        time_legend=_legend((_phase_colour(key), name) for key, name, _ in PHASES),
        caveat=html.escape(outcome.caveat()),
        counter_bars="".join(_counter_bars(figure, runs) for figure in FIGURES if figure.key in _PICTURED),
        run_legend=_legend((f"var(--run{i})", run.title) for i, run in enumerate(runs)),
        base=html.escape(runs[0].title),
        same=html.escape(runs[1].title),
        tone="good" if outcome.identical else "bad",
        verdict=html.escape(outcome.verdict()),
        curves=_curves(runs),
        table_head="".join(f"<th>{html.escape(run.title)}</th>" for run in runs),
        table_body=_table_body(runs),
        machine=html.escape(platform.platform()),
        cores=len(os.sched_getaffinity(0)),
        batch_size=outcome.batch_size,
        epochs=outcome.epochs,
        explain=f"<details>{summary}<pre>{explain}</pre></details>" if explain else "",
    )


def _cards(outcome: Outcome) -> str:
    base, same, group = outcome.runs
    fetched = [run.total("storage_bytes") / outcome.file_bytes for run in outcome.runs]
    cards = (
        (
            "identical" if outcome.identical else "different",
            "good" if outcome.identical else "bad",
            f"losses of py-lmdb and Forebay in the same order, bit for bit, over {len(base.losses):,} steps",
        ),
        (
            f"{_faults(same):,.0f}",
            "",
            f"page faults stopped a training step for data with Forebay, {_faults(base):,.0f} with py-lmdb, same order",
        ),
        (
            f"{fetched[1]:.2f}×",
            "",
            f"the file was fetched from storage by Forebay, {fetched[0]:.2f}× by py-lmdb (all epochs)",
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


def _faults(run: RunResult) -> float:
    return run.thread("minor_faults") + run.thread("major_faults")


def _time_bars(runs: Sequence[RunResult]) -> str:
    """Stacked horizontal bars, one per run."""
    left, width, height, gap = 170, 700, 34, 18
    scale = width / max(*(run.wall_seconds() for run in runs), 1e-9)
    parts = []
    for row, run in enumerate(runs):
        x, y = float(left), row * (height + gap)
        middle = y + height / 2 + 5
        parts.append(_text(0, middle, run.title))
        for key, name, _ in PHASES:
            seconds = run.phase(key)
            long = max(seconds * scale, 0)
            title = f"{run.title}, {name}: {seconds:.3f} s"
            parts.append(_bar(x, y, long, height, _phase_colour(key), title))
            if long > 46:
                style = 'text-anchor="middle" style="fill:var(--card)"'
                parts.append(_text(x + long / 2, middle, f"{seconds:.2f}", style))
            x += long
        parts.append(_text(x + 8, middle, f"{run.wall_seconds():.2f} s", 'class="soft"'))
    return _picture(len(runs) * (height + gap) - gap, "Stacked bars of the wall time", parts)


def _counter_bars(figure: Figure, runs: Sequence[RunResult]) -> str:
    """One thin bar of one counter per run."""
    left, width, height, gap = 200, 620, 13, 5
    largest = max(*(figure.value(run) for run in runs), 1e-9)
    unit = f" [{figure.unit}]" if figure.unit else ""
    parts = [_text(0, (len(runs) * (height + gap) - gap) / 2 + 5, figure.title + unit)]
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


def _table_body(runs: Sequence[RunResult]) -> str:
    rows = []
    for counters, title in ((True, "Counters"), (False, "Times")):
        rows.append(f'<tr class="group"><td colspan="{len(runs) + 1}">{title}</td></tr>')
        for figure in (figure for figure in FIGURES if figure.counter == counters):
            cells = "".join(f"<td>{figure.text(run)}</td>" for run in runs)
            name = f"{figure.title}, {figure.unit}" if figure.unit else figure.title
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
    return f"<svg {box}>{''.join(parts)}</svg>"
