"""The demo's runner: dataset, three runs, comparison, table and page."""

from __future__ import annotations

import json as json_module
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from forebay._core import ForebayError, OptionError
from forebay_lab import report, write_page
from forebay_lab.demo import results, storage
from forebay_lab.demo.data import DemoDataset, DemoError, Spec, prepare
from forebay_lab.ranks import launch
from forebay_lab.report import demo as report_demo

RANKS, SAMPLES, EPOCHS = 4, 200_000, 2
OUTPUT, DATA = Path("demo.html"), Path("demo-data")

GLOBAL_BATCH = 500
"""Samples per step over all ranks: 400 steps per epoch at the default size, without a remainder."""

SEED = 0
DEADLINE_S = 900.0
"""Of one training run; it takes seconds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One of the three runs: how it is called and what its ranks are told."""

    name: str
    title: str
    arguments: tuple[str, ...]


RUNS = (
    Run("pylmdb", "py-lmdb, skipping", ("--reader", "pylmdb")),
    Run("sequential", "Forebay, sequential", ("--reader", "forebay", "--order", "sequential")),
    Run("group", "Forebay, group", ("--reader", "forebay", "--order", "group")),
)


def main(
    json: bool = False,
    keep: bool = False,
    ranks: int = RANKS,
    samples: int = SAMPLES,
    output: Path = OUTPUT,
    data: Path = DATA,
    preset: str | None = None,
    emulate: bool = True,
) -> int:
    """Run the demo.

    Parameters
    ----------
    json
        Print one JSON object instead of the table.
    keep
        Keep the dataset for the next time. One that was there before is used and kept in any case.
    ranks
        MPI ranks; at least 1.
    samples
        Training samples to make; at least one global batch.
    output
        The page to write.
    data
        Directory of the dataset.
    preset
        File system to emulate; by default `storage.PRESET` where FUSE is there, else the local disk
        is read.
    emulate
        False: read the local disk.

    Returns
    -------
    int
        Exit code: 0, 1 (failed, message on standard error) or 2 (wrong use).
    """
    if ranks < 1 or samples < GLOBAL_BATCH or ranks > GLOBAL_BATCH:
        print(
            f"forebay demo: expected 1 to {GLOBAL_BATCH} ranks and at least {GLOBAL_BATCH} samples, "
            f"found {ranks} ranks and {samples} samples",
            file=sys.stderr,
        )
        return 2
    try:
        with launch.terminations_as_interrupts():
            write_page.check(output)
            found = results.as_json(_demo(keep, ranks, samples, data, storage.choose(preset, emulate)))
            report.write(found, output)
    except (DemoError, ForebayError, OSError) as error:
        print(f"forebay demo: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:
        print("forebay demo: interrupted; ranks ended, nothing left behind", file=sys.stderr)
        return 130
    if json:
        print(json_module.dumps(found | {"output": str(output)}))
    else:
        print(results.table(found))
        print(f"\nPage with pictures: {output}")
    return 0 if found["losses_identical"] else 1


def _demo(keep: bool, ranks: int, samples: int, data: Path, choice: storage.Choice) -> results.Outcome:
    program = launch.command(ranks, ())  # A missing MPI should show before the dataset is made.
    bar = _Progress()
    begin = time.perf_counter()
    dataset = prepare(data, Spec(samples, SEED), lambda done, every: bar.show("dataset", done, every))
    bar.end(f"dataset: {samples} samples {'made' if dataset.made else 'found'} in {data}")
    prepared_seconds = time.perf_counter() - begin
    batch_size = GLOBAL_BATCH // ranks
    try:
        with storage.opened(dataset, choice) as place:
            told, reason = place.describe(), place.reason
            bar.end(report_demo.storage({"pfs": told, "pfs_reason": reason}))
            runs = [_run(program, run, dataset, place, batch_size, ranks, bar) for run in RUNS]
    finally:
        if dataset.made and not keep:
            shutil.rmtree(dataset.directory, ignore_errors=True)
    return results.Outcome(
        samples=samples,
        ranks=ranks,
        batch_size=batch_size,
        epochs=EPOCHS,
        file_bytes=dataset.file_bytes,
        prepared_seconds=prepared_seconds,
        held_out_samples=dataset.held_out_samples,
        runs=tuple(runs),
        pfs=told,
        pfs_reason=reason,
    )


def _run(
    program: list[str],
    run: Run,
    dataset: DemoDataset,
    place: storage.Storage,
    batch_size: int,
    ranks: int,
    bar: _Progress,
) -> results.RunResult:
    steps = EPOCHS * -(-dataset.samples // (batch_size * ranks))
    place.cool()
    begin = time.perf_counter()
    with (
        launch.held_interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix="forebay-demo-") as scratch,
    ):
        result = Path(scratch, "result.json")
        launch.run(
            [
                *program,
                *("-m", "forebay_lab.demo.train", *run.arguments),
                *("--data", str(place.directory.resolve()), "--result", str(result)),
                # Not from where the data is: it would be counted there.
                *("--held-out", str(dataset.held_out.resolve())),
                *("--epochs", str(EPOCHS), "--batch-size", str(batch_size), "--seed", str(SEED)),
            ],
            deadline_s=DEADLINE_S,
            progress=lambda done: bar.show(run.title, done, steps),
            interrupts=interrupts,
            variables={"FOREBAY_CACHE_DIR": str(place.cache.resolve())},
        )
        if not result.exists():
            raise DemoError(f"training run {run.title}: expected a result from rank 0, found none")
        job = json_module.loads(result.read_text())
    found = results.RunResult.read(run.name, run.title, job, place.counted())
    bar.end(
        f"{run.title}: {steps} steps, {time.perf_counter() - begin:.1f} s with start and end of the ranks"
    )
    return found


class _Progress:
    """A bar on standard error where that is a terminal; only the closing lines elsewhere."""

    _WIDTH = 32

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def show(self, what: str, done: int, every: int) -> None:
        """Draw the bar."""
        if self._terminal:
            filled = self._WIDTH * done // max(every, 1)
            bar = "#" * filled + "." * (self._WIDTH - filled)
            print(f"\r\x1b[K{what:<22} [{bar}] {done}/{every}", end="", file=sys.stderr, flush=True)

    def end(self, line: str) -> None:
        """Replace the bar by a line."""
        print(f"\r\x1b[K{line}" if self._terminal else line, file=sys.stderr, flush=True)
