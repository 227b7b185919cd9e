"""Measures line coverage of the tests: of those of `make test` and of all, in Python and in Rust.

    python scripts/measure_coverage.py              # both selections
    python scripts/measure_coverage.py test         # that of `make test` alone

1. Cargo builds the native modules with ``-C instrument-coverage`` into target/coverage. They take
   the place of those of `make build`, which come back at the end.
2. scripts/run_tests.py runs the suites rust and python. Each process writes what it ran: Rust by
   ``LLVM_PROFILE_FILE``, Python by ``COVERAGE_PROCESS_START``, by which coverage.py starts in every
   interpreter of the environment.
3. llvm-profdata and llvm-cov, which read only profiles of their own LLVM, count the lines of Rust,
   coverage.py those of Python.

The tools of LLVM are a component of Rust, llvm-tools. Where the toolchain has none, rustup installs
the same release once more with it, below target/coverage.

Not measured: the preload library, which runs inside of other programs; processes that are killed;
the suites loom and frameworks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "target/coverage"
BUILD = PLACE / "build"
# Library of cargo → where Python looks for it.
MODULES = {
    "libforebay_native.so": ROOT / "python/forebay/_native.abi3.so",
    "libforebay_lab_native.so": ROOT / "lab/python/forebay_lab/_native.abi3.so",
}
SOURCES = (ROOT / "python/forebay", ROOT / "lab/python/forebay_lab")
# Optimised a little and without debug information, as in continuous integration.
PROFILE = "ci"
# Selection → options of scripts/run_tests.py.
SELECTIONS: Mapping[str, Sequence[str]] = {"test": (), "test-all": ("--all",)}
# Sources of Rust below the root: not those of the library, of other crates, and of tests.
OURS = re.compile(r"((lab/)?crates|run)/[^/]+/src/")
CONFIGURATION = """[run]
source =
    {sources}
data_file = {data}
parallel = true
sigterm = true
patch = _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""


class UnavailableError(Exception):
    """What is needed to measure Rust cannot be had."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Numbers of lines that can run and that ran."""

    total: int
    covered: int

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.total + other.total, self.covered + other.covered)

    def __str__(self) -> str:
        share = 100 * self.covered / self.total if self.total else 0.0
        return f"{share:.2f} % ({self.covered:,} of {self.total:,})"


def output(command: Sequence[str | Path], **environment: str) -> str:
    """Run a command and return what it prints; its errors pass through."""
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def llvm_tools() -> Path:
    """Return the directory of llvm-profdata and llvm-cov, installed if need be."""
    about = dict(line.split(": ", 1) for line in output(["rustc", "-vV"]).splitlines() if ": " in line)
    below = f"lib/rustlib/{about['host']}/bin"
    found = Path(output(["rustc", "--print", "sysroot"]).strip()) / below
    if (found / "llvm-profdata").exists():
        return found
    if shutil.which("rustup") is None:
        raise UnavailableError(f"{found} has no llvm-profdata, and there is no rustup to install it")
    home = PLACE / "rustup"
    command = ["rustup", "toolchain", "install", about["release"], "--profile", "minimal"]
    command += ["--component", "llvm-tools", "--no-self-update"]
    try:
        output(command, RUSTUP_HOME=str(home))
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"{' '.join(command)} failed with status {error.returncode}") from error
    (found,) = home.glob(f"toolchains/*/{below}")
    return found


def instrumented() -> dict[str, str]:
    """Return the environment in which cargo builds with instruments."""
    return {
        "RUSTFLAGS": f"{os.environ.get('RUSTFLAGS', '')} -C instrument-coverage".strip(),
        "CARGO_TARGET_DIR": str(BUILD),
        "CARGO_INCREMENTAL": "0",
        "FOREBAY_TEST_BUILD": "1",
        # Build scripts are instrumented, too.
        "LLVM_PROFILE_FILE": str(PLACE / "build-scripts/%m.profraw"),
    }


def build() -> None:
    """Build the native modules with instruments."""
    print("== instrumented native modules", flush=True)
    output(["cargo", "build", f"--profile={PROFILE}", "-p", "forebay-native", "-p", "forebay-lab-native"],
           **instrumented())  # fmt: skip


def programs() -> list[Path]:
    """Return the programs of Rust's tests, as the suite rust builds them."""
    command = ["cargo", "test", "--workspace", "--tests", "--no-run", "--quiet"]
    command += [f"--profile={PROFILE}", "--message-format=json"]
    messages = map(json.loads, output(command, **instrumented()).splitlines())
    return [Path(path) for message in messages if (path := message.get("executable"))]


@contextmanager
def modules_in_place() -> Iterator[None]:
    """Let the instrumented modules take the place of the others, which come back at the end."""
    kept = PLACE / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    # If this process is killed, `make build` builds again.
    (ROOT / ".venv/.built").unlink(missing_ok=True)
    for library, module in MODULES.items():
        shutil.copy2(module, kept / library)
    try:
        for library, module in MODULES.items():
            replace(BUILD / PROFILE / library, module)
        yield
    finally:
        for library, module in MODULES.items():
            replace(kept / library, module)
        (ROOT / ".venv/.built").touch()


def replace(source: Path, target: Path) -> None:
    """Replace a file that processes may have mapped."""
    beside = target.with_suffix(".new")
    shutil.copy2(source, beside)
    beside.rename(target)


def python_measured(place: Path) -> dict[str, str]:
    """Return the environment in which every interpreter measures."""
    configuration = place / "coverage.ini"
    sources = "\n    ".join(map(str, SOURCES))
    configuration.write_text(CONFIGURATION.format(sources=sources, data=place / "python/data"))
    return {"COVERAGE_PROCESS_START": str(configuration)}


def python_lines(place: Path) -> Lines:
    """Count the lines of Python in what processes have written."""
    coverage = [sys.executable, "-m", "coverage"]
    configuration = f"--rcfile={place / 'coverage.ini'}"
    output([*coverage, "combine", "--quiet", configuration])
    report = place / "python.json"
    output([*coverage, "json", "--quiet", "--ignore-errors", configuration, "-o", report])
    totals = json.loads(report.read_text())["totals"]
    return Lines(totals["num_statements"], totals["covered_lines"])


def rust_lines(place: Path, tools: Path, objects: Sequence[Path]) -> Lines:
    """Count the lines of Rust in what processes have written."""
    profile = place / "rust.profdata"
    raw = sorted(map(str, (place / "rust").glob("*.profraw")))
    # A process that was killed while it wrote leaves a profile that cannot be read.
    output([tools / "llvm-profdata", "merge", "--sparse", "--failure-mode=all", *raw, "-o", profile])
    command: list[str | Path] = [tools / "llvm-cov", "export", "--format=text", "--summary-only"]
    command += [f"--instr-profile={profile}", objects[0]]
    for one in objects[1:]:
        command += ["--object", one]
    report = output(command)
    (place / "rust.json").write_text(report)
    return sum_of_ours(json.loads(report), ROOT)


def sum_of_ours(report: Any, root: Path) -> Lines:
    """Sum the lines of our sources in what llvm-cov exports."""
    files = ((Path(file["filename"]), file["summary"]["lines"]) for file in report["data"][0]["files"])
    return sum(
        (
            Lines(lines["count"], lines["covered"])
            for path, lines in files
            if path.is_relative_to(root) and OURS.match(str(path.relative_to(root)))
        ),
        Lines(0, 0),
    )


def measure(selection: str, tools: Path | None) -> dict[str, Lines]:
    """Run a selection of the tests and count what they covered."""
    place = PLACE / selection
    shutil.rmtree(place, ignore_errors=True)
    (place / "python").mkdir(parents=True)
    (place / "rust").mkdir()
    environment: dict[str, str] = {}
    if tools:
        # Up to eight processes at a time write, each adds to a file of its library or program.
        environment = instrumented() | {"LLVM_PROFILE_FILE": str(place / "rust/%8m.profraw")}
    command = [sys.executable, ROOT / "scripts/run_tests.py", *SELECTIONS[selection], f"--profile={PROFILE}"]
    done = subprocess.run(
        [*command, *(["rust"] if tools else []), "python"],
        cwd=ROOT,
        env={**os.environ, **environment, **python_measured(place)},
        check=False,
    )
    if done.returncode:
        print(f"tests of `make {selection}` failed: what they would have run is missing", file=sys.stderr)
    found = {"Python": python_lines(place)}
    if tools:
        found["Rust"] = rust_lines(place, tools, [*(BUILD / PROFILE / one for one in MODULES), *programs()])
    return found


def main() -> int:
    """Measure what was asked for; print a line for each language, then one for both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "selections", nargs="*", metavar="SELECTION", help=f"{', '.join(SELECTIONS)} (default: both)"
    )
    options = parser.parse_args()
    selections = options.selections or list(SELECTIONS)
    if unknown := set(selections) - set(SELECTIONS):
        parser.error(f"unknown selection {', '.join(sorted(unknown))}: choose from {', '.join(SELECTIONS)}")
    PLACE.mkdir(parents=True, exist_ok=True)
    note = ""
    try:
        tools: Path | None = llvm_tools()
    except UnavailableError as error:
        tools, note = None, f"Rust was not measured: {error}"
    if tools:
        build()
        with modules_in_place():
            found = {selection: measure(selection, tools) for selection in selections}
    else:
        found = {selection: measure(selection, None) for selection in selections}
    for selection, lines in found.items():
        print(f"\nlines that `make {selection}` covers")
        for language, count in lines.items():
            print(f"  {language:8}{count}")
        if len(lines) > 1:
            print(f"  {'both':8}{sum(lines.values(), Lines(0, 0))}")
    if note:
        print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
