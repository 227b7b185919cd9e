"""A limit of threads: loaders continue with fewer, or an error names the limit; no panic."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from support import record, run_python, write_lmdb

# Uses `warm` while threads can be had, so that everything is imported, then `cold` when none can:
# root, whom the kernel exempts, becomes another user for that.
_PRELUDE = """
import importlib, json, os, resource, sys
import forebay
import forebay_lab, forebay_lab._native
from forebay import ForebayError, Loader, _native

def at_the_limit(use, warm, cold):
    use(warm)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:
        os.chown(os.environ["FOREBAY_CACHE_DIR"], 65534, 65534)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        found = use(cold)
    except BaseException as error:
        found = {"class": type(error).__name__, "ours": isinstance(error, ForebayError), "text": str(error)}
    print(json.dumps(found))
"""


@pytest.fixture
def places():
    """Directories for two datasets, which any user may read, and one for the cache."""
    with tempfile.TemporaryDirectory(prefix="forebay-test-") as path:
        for one in (Path(path), *(Path(path) / name for name in ("warm", "cold"))):
            one.mkdir(exist_ok=True)
            one.chmod(0o777)
        (Path(path) / "cache").mkdir(mode=0o700)
        yield Path(path)


def at_the_limit(places: Path, use: str, warm: Path, cold: Path) -> dict[str, object]:
    code = f"{_PRELUDE}\n{use}\nat_the_limit(use, sys.argv[1], sys.argv[2])"
    done = run_python(code, warm, cold, environment={"FOREBAY_CACHE_DIR": str(places / "cache")})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lmdb_of(path: Path) -> Path:
    # Enough leaves for several threads.
    return write_lmdb(path / "data.lmdb", [record(number, 300) for number in range(200)])


def assert_names_the_limit(found: dict[str, object], what: str) -> None:
    assert found["ours"], found
    assert found["class"] == "ForebayError"
    message, hint = str(found["text"]).split("\nhint: ")
    user = os.getuid() or 65534
    assert message.startswith(f"cannot start {what}")
    assert f"RLIMIT_NPROC is reached (limit 1 processes and threads of user {user}, in use" in message
    assert "ulimit -u" in hint


def test_an_index_is_built_by_the_calling_thread_where_no_other_can_be_started(places):
    use = "def use(path): return {'samples': len(forebay.open(path))}"
    assert at_the_limit(places, use, *(lmdb_of(places / name) for name in ("warm", "cold"))) == {
        "samples": 200
    }


def test_a_folder_is_listed_by_the_calling_thread_where_no_other_can_be_started(places):
    for name in ("warm", "cold"):
        for number in range(400):
            (places / name / f"{number:04d}.bin").write_bytes(bytes([number % 256]) * 10)
    use = "def use(path): return {'samples': len(forebay.open(path))}"
    assert at_the_limit(places, use, places / "warm", places / "cold") == {"samples": 400}


def test_verify_is_done_by_the_calling_thread_where_no_other_can_be_started(places):
    use = "def use(path): return _native.Dataset([path]).verify(threads=8)"
    found = at_the_limit(places, use, *(lmdb_of(places / name) for name in ("warm", "cold")))
    assert found["samples"] == 200
    assert found["bad_samples"] == 0


def test_a_measurement_with_too_few_threads_is_an_error_that_names_the_limit(places):
    use = "def use(path): return _native.limit(path, block_bytes=4096, seconds=0.01, kind='sequential', threads=4)"
    found = at_the_limit(places, use, *(lmdb_of(places / name) / "data.mdb" for name in ("warm", "cold")))
    assert_names_the_limit(found, "thread 1 of 4 that read")


@pytest.mark.parametrize("strategy", ["forebay", "pread", "lmdb"])
def test_a_loader_without_threads_is_an_error_that_names_the_limit(places, strategy):
    use = f"""
def use(path):
    strategy = forebay_lab.strategy({strategy!r})
    with Loader(path, 4, order="sequential", strategy=strategy, world="single", expected_epochs=1) as loader:
        return sum(len(batch.indices) for batch in loader)
"""
    found = at_the_limit(places, use, *(lmdb_of(places / name) for name in ("warm", "cold")))
    assert_names_the_limit(found, "engine thread")


def test_an_emulator_without_threads_is_an_error_that_names_the_limit(places):
    use = """
def use(path):
    if path.endswith("warm"):
        return None
    configuration = {
        "backing": path,
        "mounts": [path + ".mount"],
        "socket": path + ".socket",
        "spec": json.loads(forebay_lab._native.pfs_spec("none", None, None, "{}")),
    }
    forebay_lab._native.pfs_serve(json.dumps(configuration))
"""
    found = at_the_limit(places, use, places / "warm", places / "cold")
    assert_names_the_limit(found, "the reply threads")


@pytest.mark.parametrize("daemon", ["store", "tiers"])
def test_a_daemon_without_a_thread_is_an_error_that_names_the_limit(places, daemon):
    serve = {
        "store": "_native.serve_store(1 << 20, 0.01, print)",
        "tiers": "_native.serve_tiers(0.01, print)",
    }
    use = f"""
def use(path):
    if path.endswith("warm"):
        return None
    os.environ["FOREBAY_RUNTIME_DIR"] = path + "/runtime"
    {serve[daemon]}
"""
    found = at_the_limit(places, use, places / "warm", places / "cold")
    assert_names_the_limit(found, "the thread of a daemon")
