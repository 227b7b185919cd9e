"""Runs the test suites one after the other and sums them up in one closing line.

Every suite's output is passed through as it comes. Rust suites are counted from the `test result:`
lines of cargo's test harness, the Python suite from the JUnit file that pytest writes. A suite that
ends badly without naming a failed test (it did not compile, it was killed) counts as one failure.
The closing line stands alone at the end:

    1234 passed, 0 failed, 3 skipped

Rust's `ignored` tests count as skipped; they are the long ones, run by `make test-long` (`--long`).

By default (`make test`) a part of the tests runs: no suite `loom`, fewer cases of Rust's
properties, and of the Python tests what tests/support/selection.py chooses. Once the Rust suite is
compiled, it runs beside that of Python; its output is shown at the end. `--all`
(`make test-all`) runs all. What a run leaves out counts neither as passed nor as failed; lines
before the closing one name it.

The suite `frameworks` runs only where it is asked for: by its name, or with `--frameworks`.
scripts/frameworks.py makes its environment, while the other suites run. With `--frameworks` the
machine need not have its packages: a line before the closing one then says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
# What the tests look at to run longer.
LONG = {"FOREBAY_LONG_TESTS": "1", "PROPTEST_CASES": "10000"}
# Properties have 256 cases by default.
SHORT = {"PROPTEST_CASES": "32"}
# Packages whose tests take no longer unoptimised, and compile in half the time. Of packages in Rust
# only those that no optimised crate uses: it would take generic code from them as it is.
QUICK = ("engine", "host", "image", "lmdbio", "pfs", "preload", "recipe")
QUICK_OTHERS = ("fast_image_resize", "fdeflate", "fuser", "libjpeg-turbo-rs", "nix", "png", "zstd-sys")
QUICKLY = [f"--config=profile.dev.package.{name}.opt-level=0" for name in QUICK_OTHERS]
QUICKLY += [f"--config=profile.dev.package.forebay-{crate}.opt-level=0" for crate in QUICK]
QUICKLY += ["--config=profile.dev.debug=false"]
# More of them at a time, as they wait.
WAITING = {"RUST_TEST_THREADS": "3"}
# Models take seconds, however they are compiled: 57 CPU seconds in all, against 268 optimised.
UNOPTIMISED = {"CARGO_PROFILE_DEV_OPT_LEVEL": "0", "CARGO_PROFILE_DEV_DEBUG": "0"}
# Tests also wait: four processes keep two cores busy.
# The tests of a file stay together, because they share fixtures; conftest.py orders the files.
PARALLEL = ["--numprocesses", str(min(2 + (os.cpu_count() or 1), 8))]
PARALLEL += ["--dist", "loadfile", "--no-loadscope-reorder"]
SUITES = ("rust", "loom", "python", "frameworks")
# Tests start hundreds of processes: without bytecode each of them would compile the package again.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
# Exit status of scripts/frameworks.py where its packages cannot be had.
UNAVAILABLE = 69
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
# What tests/support/selection.py prints of those that a short run leaves out.
LEFT_OUT = re.compile(r"^\d+ tests run only by make test-all$")


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of tests by outcome."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def ended(self, returncode: int) -> Counts:
        """Count a suite that ended badly without naming a failed test as one failure."""
        if returncode != 0 and self.failed == 0:
            return self + Counts(failed=1)
        return self

    def closing_line(self) -> str:
        """One line with all that there is to say; the skipped are left out where there are none."""
        line = f"{self.passed} passed, {self.failed} failed"
        return f"{line}, {self.skipped} skipped" if self.skipped else line


def count_rust(lines: Iterable[str]) -> Counts:
    """Sum the result lines of cargo's test harness."""
    counts = Counts()
    for line in lines:
        if match := RESULT.match(line.strip()):
            counts += Counts(*map(int, match.groups()))
    return counts


def count_junit(path: Path) -> Counts:
    """Read pytest's JUnit file; a missing or broken one counts nothing."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return Counts()
    counts = Counts()
    for suite in root.iter("testsuite"):
        total, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
        failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        counts += Counts(total - failed - skipped, failed, skipped)
    return counts


def run(
    title: str, command: list[str], environment: dict[str, str], out: TextIO = sys.stdout
) -> tuple[list[str], int]:
    """Run a command, pass its output through to ``out``, return its lines and exit status."""
    print(f"== {title}", file=out, flush=True)
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            out.flush()
            lines.append(line)
    return lines, process.returncode


def rust(title: str, command: list[str], environment: dict[str, str], out: TextIO = sys.stdout) -> Counts:
    """Run a Rust suite."""
    lines, returncode = run(title, command, environment, out)
    return count_rust(lines).ended(returncode)


def compiled(command: list[str], environment: dict[str, str]) -> bool:
    """Compile what a Rust suite runs."""
    return run("rust: compile", [*command, "--no-run"], environment)[1] == 0


@contextmanager
def beside(work: Callable[[TextIO], Counts]) -> Iterator[Future[Counts]]:
    """Do work in a thread, and show its output at the end."""
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            yield thread.submit(work, out)
        finally:
            thread.shutdown()
            out.seek(0)
            shutil.copyfileobj(out, sys.stdout)


def left_out(lines: Iterable[str]) -> list[str]:
    """Return the lines that say what a short run of pytest has left out."""
    return [line for line in map(str.strip, lines) if LEFT_OUT.match(line)]


def pytest(
    title: str, interpreter: str, arguments: list[str], environment: dict[str, str]
) -> tuple[Counts, list[str]]:
    """Run a Python suite; return the counts, and lines on what it has left out."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [interpreter, "-m", "pytest", f"--junit-xml={report}", *arguments]
        lines, returncode = run(title, command, BYTECODE | environment)
        return count_junit(report).ended(returncode), left_out(lines)


def make_frameworks() -> subprocess.Popen[str]:
    """Begin to make the environment of the framework tests, which mostly waits for downloads."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/frameworks.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def frameworks(making: subprocess.Popen[str], optional: bool) -> tuple[Counts, str]:
    """Run the framework tests; return the counts, or why they were skipped where allowed."""
    print("== frameworks", making.communicate()[0], sep="\n", flush=True)
    returncode = making.returncode
    if returncode == UNAVAILABLE and optional:
        return Counts(), "frameworks did not run: their packages cannot be had here"
    if returncode != 0:
        return Counts(failed=1), ""
    interpreter = str(ROOT / ".venv-frameworks/bin/python")
    return pytest("frameworks", interpreter, [*PARALLEL, "tests/frameworks"], {})[0], ""


def loom_tests() -> dict[str, list[str]]:
    """Names of the loom test files by crate; they compile to nothing without `--cfg loom`."""
    tests: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("crates/*/tests/loom_*.rs")):
        tests.setdefault(path.parent.parent.name, []).append(path.stem)
    return tests


def main() -> int:
    """Run everything that was asked for; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="all tests, not a part of them (make test-all)")
    parser.add_argument("--long", action="store_true", help="all, and the long runs of the same tests")
    parser.add_argument("--jobs", default="2", help="parallel compilations of cargo")
    parser.add_argument("--profile", help="of cargo, for the suite rust (default: dev; with --long, release)")
    parser.add_argument(
        "--frameworks", action="store_true", help="also the suite frameworks, where its packages can be had"
    )
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"{', '.join(SUITES)} (default: rust and python, with --all or --long loom as well)",
    )
    options = parser.parse_args()
    options.profile = options.profile or ("release" if options.long else "dev")
    short = not (options.all or options.long)
    suites = options.suites or ["rust", *([] if short else ["loom"]), "python"]
    if unknown := set(suites) - set(SUITES):
        parser.error(f"unknown suite {', '.join(sorted(unknown))}: choose from {', '.join(SUITES)}")

    counts, notes = Counts(), []
    if short and not options.suites:
        notes.append("loom runs only by make test-all")
    environment = LONG if options.long else SHORT if short else {}
    together: Callable[[TextIO], Counts] | None = None
    making = make_frameworks() if "frameworks" in suites or options.frameworks else None
    if "rust" in suites:
        command = [
            "cargo",
            "test",
            "--workspace",
            "--no-fail-fast",
            f"-j{options.jobs}",
            f"--profile={options.profile}",
        ]
        if short:
            # No documentation tests: each crate's takes seconds, whether it has any or not. And no
            # examples, and libraries without tests, such as the native modules.
            command += ["--tests", *(QUICKLY if options.profile == "dev" else [])]
        if options.long:
            command += ["--", "--include-ignored"]
        if short and "python" in suites and compiled(command, environment):
            # Tests of Rust wait half of their time, those of Python a third.
            together = partial(rust, "rust", command, environment | WAITING)
        else:
            counts += rust("rust", command, environment)
    if "loom" in suites:
        command = ["cargo", "test", "--no-fail-fast", f"-j{options.jobs}"]
        for crate, names in loom_tests().items():
            command += ["-p", crate]
            for name in names:
                command += ["--test", name]
        # Its own target directory: the flag changes every crate, the ordinary build would be thrown
        # away each time.
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "loom"
        flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg loom".strip()
        counts += rust("loom", command, {"RUSTFLAGS": flags, "CARGO_TARGET_DIR": str(target), **UNOPTIMISED})
    if "python" in suites:
        with beside(together) if together else nullcontext() as rust_suite:
            found, left = pytest("python", sys.executable, [*PARALLEL, *["--short"] * short], environment)
        counts += found + (rust_suite.result() if rust_suite else Counts())
        notes += left
    if making:
        found, note = frameworks(making, optional="frameworks" not in suites)
        counts += found
        notes += [note] if note else []
    print("", *notes, counts.closing_line(), sep="\n", flush=True)
    return 0 if counts.failed == 0 and counts.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
