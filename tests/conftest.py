"""Fixtures for all tests: datasets, an environment without surprises."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
from pathlib import Path

import pytest

import support
from support import disk_use, selection
from support.cluster import mpi
from support.ranks import plain
from support.ranks.pool import Pool

# Modules whose fixtures all tests may use; one that another imports stands before it.
pytest_plugins = (
    "support.emulator",
    "support.bench",
    "support.demo",
    "support.snapshot",
    "support.small_loaders",
    "support.tiering",
    "support.preload",
)

# A shell starts background jobs with SIGINT ignored, and Python then leaves it so; tests that
# interrupt need the usual handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files whose tests take longest, the longest first. Processes that run tests in parallel take files
# in this order, so that none ends long after the others.
SLOW_FILES = (
    "test_node_failures.py", "test_bench_command.py", "test_bench_surroundings.py", "test_mpi.py", "test_node_links.py",
    "test_studies.py", "test_truncated_files.py", "test_promises.py", "test_per_sample_processes.py", "test_bench_mounts.py",
    "test_run_with_tiers.py", "test_store.py", "test_stalls.py", "test_run_faults.py", "test_rank_deaths.py",
    "test_bench_nodes.py", "test_opportunistic.py", "test_store_daemon.py", "test_async_study.py",
    "test_tier_faults.py", "test_decode.py", "test_local_shuffle.py", "test_loader_lifecycle.py", "test_packaging.py",
    "test_lmdbio_steps_on_nodes.py", "test_memory_limit.py", "test_preload_random.py",
    # With frameworks:
    "test_torch_examples.py", "test_torch_distributed.py", "test_dlio.py", "test_preload_workers.py",
    "test_preload_frameworks.py", "test_jax_tensorflow_examples.py", "test_torch_workers.py", "test_torch_nodes.py",
    "test_torch_samples.py", "test_lightning_resume.py",
)  # fmt: skip

# What a launcher, a user or a cluster may have set; a test sets what it needs.
PREFIXES = ("FOREBAY_", "OMPI_COMM_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
# How to test, and how cargo has built the extension: with another value it would build it again.
KEPT = ("FOREBAY_LONG_TESTS", "FOREBAY_TEST_BUILD")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def pytest_addoption(parser):
    parser.addoption(
        "--short",
        action="store_true",
        help="leave out what only `make test-all` runs: tests marked full, and most combinations of parameters",
    )


def pytest_collection_modifyitems(config, items):
    """Begin with the slowest files; leave out what this run is too short for."""
    place = {name: number for number, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW_FILES)))
    if support.LONG:
        return
    kept = everything = selection.kept(items, short=False)
    if config.getoption("short"):
        kept = selection.kept(items, short=True)
        config.stash[selection.LEFT_TO_ALL] = len(everything - kept)
    # A case that is asked for by its name is run.
    named = {name for argument in config.args if (name := argument.rpartition("::")[2]).endswith("]")}
    left = [item for item in items if item not in kept and item.name not in named]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item in kept or item.name in named]


def pytest_configure(config):
    # Parallel workers share the directory of the process that started them.
    shared = (
        Path(tempfile.gettempdir()) if hasattr(config, "workerinput") else disk_use.own_temporary_directory()
    )
    config.stash[disk_use.KEY] = disk_use.DiskUse(shared)
    config.stash[disk_use.KEY].start()


def pytest_unconfigure(config):
    disk = config.stash[disk_use.KEY]
    disk.stop()
    if hasattr(config, "workerinput"):
        return
    # Directories of failed tests stay, and with them what they lie in.
    with contextlib.suppress(OSError):
        for users in disk.path.glob("pytest-of-*"):
            users.rmdir()
        disk.path.rmdir()


def pytest_sessionfinish(session):
    """Send what a parallel worker has seen to the process that started it."""
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["disk"] = session.config.stash[disk_use.KEY].seen()
        session.config.workeroutput["left"] = session.config.stash.get(selection.LEFT_TO_ALL, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take what a parallel worker has seen; one that crashed has sent nothing."""
    if seen := getattr(node, "workeroutput", {}).get("disk"):
        node.config.stash[disk_use.KEY].take(seen)
        # All workers collect the same tests.
        node.config.stash[selection.LEFT_TO_ALL] = node.workeroutput["left"]


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.section("disk")
    for line in config.stash[disk_use.KEY].report(5):
        terminalreporter.write_line(line)
    if left := config.stash.get(selection.LEFT_TO_ALL, 0):
        terminalreporter.write_line(selection.left_out(left))


@pytest.fixture(autouse=True)
def disk(request):
    """Fail a test during which more disk is taken than all tests together may take."""
    watch = request.config.stash[disk_use.KEY]
    watch.begin(request.node.nodeid)
    yield
    taken = watch.end()
    assert taken <= disk_use.MAX_BYTES, f"the tests take {taken / 1e6:,.0f} MB of disk at once"


@pytest.fixture(scope="session")
def sockets():
    """A directory for sockets of this run alone, with a path short enough for them."""
    with tempfile.TemporaryDirectory(prefix="forebay-test-") as path:
        yield path


@pytest.fixture
def short_path():
    """A directory for sockets of one test, with a path short enough for them."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(scope="session")
def system_file():
    """An empty configuration file of the system, which other users can read as well."""
    return Path(os.devnull)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path, sockets, system_file):
    """Run each test with no options of its surroundings, an empty cache and an empty directory."""
    for name in os.environ:
        if (name.startswith(PREFIXES) or name in NAMES) and name not in KEPT:
            monkeypatch.delenv(name)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(cache))
    monkeypatch.setenv("FOREBAY_RUNTIME_DIR", sockets)
    monkeypatch.setenv("FOREBAY_SYSTEM_CONFIG", str(system_file))
    # For tests that give options an environment of their own.
    monkeypatch.setattr("forebay.options.SYSTEM_CONFIG_FILE", str(system_file))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@pytest.fixture(scope="session")
def small_records():
    """A hundred records of 300 bytes; record i is filled with a pattern of i."""
    return [support.record(number, 300) for number in range(100)]


@pytest.fixture(scope="session")
def small_lmdb(tmp_path_factory, small_records):
    """An LMDB directory of the small records."""
    return support.write_lmdb(tmp_path_factory.mktemp("small") / "small.lmdb", small_records)


@pytest.fixture(scope="session")
def datum_lmdb(tmp_path_factory):
    """An LMDB directory of 64 Caffe Datum samples of 3x8x8, label = number."""
    values = [support.datum(number) for number in range(64)]
    return support.write_lmdb(tmp_path_factory.mktemp("datum") / "datum.lmdb", values)


@pytest.fixture(scope="module")
def pool():
    """Processes that play the ranks of a node."""
    pool = Pool()
    yield pool
    pool.end()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """An LMDB directory of records from no byte to 150 KB."""
    return plain.write_mixed(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """An LMDB directory of records of one length."""
    return plain.write_even(tmp_path_factory.mktemp("even"))


@pytest.fixture(scope="module")
def mpich(tmp_path_factory):
    """An environment with MPICH's wheel."""
    return mpi.install_mpich(tmp_path_factory.mktemp("mpich"))


@pytest.fixture
def no_held_memory():
    """Free memory that earlier tests held, such as the batch in a traceback's frame."""
    gc.collect()
