"""Random programs of file operations have the same results with and without the library.

A program is a text of operations (`file_operations generate SEED COUNT`), which runs in two equal
trees, once with copies of all files. If the results differ, the test leaves out operations for as
long as they still differ, and shows what is left.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import LONG
from support.preload import run

OPERATIONS = 5_000
PROGRAMS = 2_000 if LONG else 44
SIZES = [0, 1, 511, 4_095, 4_096, 4_097, 10_000, 16_384, 70_001, 200_000]
THREADS = 3
PRIVATE_FILES = 24
# A watchdog, as everywhere: ten million operations take some minutes.
TIMEOUT_S = 7200 if LONG else 600
# How many smaller programs are tried when one differs.
SHRINKS = 200


def make_tree(root):
    """Write files, links to them, and a second name of each, so that no inode is used again."""
    data = random.Random(3)
    (root / "keep").mkdir(parents=True)
    (root / "links").mkdir()
    (root / "loop").symlink_to("loop")
    files = [("shared", f"s{number}", size) for number, size in enumerate(SIZES)]
    for thread in range(THREADS):
        files += [
            (f"private{thread}", f"p{number}", data.randrange(20_000)) for number in range(PRIVATE_FILES)
        ]
    for directory, name, size in files:
        path = root / directory
        if not path.exists():
            path.mkdir()
            (root / f"link-{directory}").symlink_to(directory)
        (path / name).write_bytes(data.randbytes(size))
        os.link(path / name, root / "keep" / f"{directory}-{name}")
        if directory == "shared":
            (root / "links" / name).symlink_to(f"../shared/{name}")


class Pair:
    """Runs programs in two trees, the second one with copies."""

    def __init__(self, preload, make_copies, directory):
        self.preload, self.make_copies, self.directory = preload, make_copies, directory
        self.redirects = 0

    def results(self, program, mode):
        """Return what a program prints without and with the library."""
        roots = [self.directory / name / "tree" for name in ("without", "with")]
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)
            make_tree(root)
        copies = self.make_copies(roots[1])
        text = self.directory / "program"
        text.write_text(program)
        environments = [dict(os.environ), self.preload.environment(copies.table)]
        commands = [[self.preload.file_operations, mode, root, text] for root in roots]
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(run, command, env=environment)
                for command, environment in zip(commands, environments, strict=True)
            ]
            found = [job.result() for job in jobs]
        counters, _ = copies.counters()
        self.redirects += counters["opened"]
        shutil.rmtree(copies.level)
        return found

    def differs(self, lines):
        without, with_library = self.results("\n".join(lines), "digest")
        return without != with_library

    def shrunk(self, lines):
        """Leave out operations for as long as the results differ."""
        head, lines = lines[0], lines[1:]
        part, tries = max(len(lines) // 2, 1), 0
        while tries < SHRINKS:
            start = 0
            while start < len(lines) and tries < SHRINKS:
                tries += 1
                fewer = lines[:start] + lines[start + part :]
                if self.differs([head, *fewer]):
                    lines = fewer
                else:
                    start += part
            if part == 1:
                break
            part = max(part // 2, 1)
        return [head, *lines]


@pytest.fixture
def pair(preload, make_copies, tmp_path):
    return Pair(preload, make_copies, tmp_path)


def generate(preload, seed, operations=OPERATIONS):
    command = [preload.file_operations, "generate", str(seed), str(operations)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.full
def test_random_operations_have_the_same_results(pair, preload):
    for seed in range(1, PROGRAMS + 1):
        program = generate(preload, seed)
        without, with_library = pair.results(program, "digest")
        assert (without[1], without[2]) == (b"", 0)
        if without == with_library:
            continue
        lines = pair.shrunk(program.splitlines())
        results = [output.decode().splitlines() for output, _, _ in pair.results("\n".join(lines), "run")]
        pytest.fail(f"seed {seed}\n" + "\n".join([*lines, "without:", *results[0], "with:", *results[1]]))
    assert pair.redirects > PROGRAMS * OPERATIONS / 100


@pytest.mark.full
def test_wrong_copies_are_found_and_the_program_is_shrunk(pair, preload):
    make = pair.make_copies
    pair.make_copies = lambda root: make(root, "--wrong")
    lines = generate(preload, 2, 300).splitlines()
    assert pair.differs(lines)
    shrunk = pair.shrunk(lines)
    assert pair.differs(shrunk)
    # An open and a read, or one of the operations that do both.
    assert len(shrunk) <= 3
