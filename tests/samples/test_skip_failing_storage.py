"""Storage that fails for a range: one timeout per block; the readable rest is delivered."""

from __future__ import annotations

import errno
import json
import logging
import re
import warnings

import numpy as np
import pytest
from tests.formats.test_tfrecord import write as write_tfrecord

import forebay
import support
from forebay_lab import pfs
from support.emulator import needs_fuse

pytestmark = needs_fuse

SAMPLES = 1000
SAMPLE_BYTES = 4283
# A mebibyte that begins and ends within samples.
FROM, TO = 1 << 20, 2 << 20
ONCE = "(1 attempt, as reads around it have failed)"


def is_bad(number: int, start: int) -> bool:
    # A read that begins in a page of the stretch fails, one that runs into it comes short there.
    first = start + number * SAMPLE_BYTES
    return first < TO and first + SAMPLE_BYTES > FROM


@pytest.fixture
def spoiled(backing, points):
    """A file of which a mebibyte cannot be read, where its samples begin in it, and its samples."""
    rows = np.random.default_rng(1).integers(0, 256, (SAMPLES, SAMPLE_BYTES), "uint8")
    np.save(backing / "x.npy", rows)
    server = pfs.Server.start(backing, points[:1], preset="none")
    path = points[0] / "x.npy"
    len(forebay.open(path))
    server.drop_caches(points[0])
    server.fail_range("x.npy", FROM, TO)
    yield path, (backing / "x.npy").stat().st_size - rows.size, rows
    server.end()


@pytest.mark.parametrize("strategy", ["forebay", "pread", "io_uring", "mmap"])
def test_a_stretch_that_cannot_be_read_is_retried_once_per_block(spoiled, strategy):
    path, start, rows = spoiled
    bad = {number for number in range(SAMPLES) if is_bad(number, start)}
    assert 240 < len(bad) < 250
    with (
        warnings.catch_warnings(),
        forebay.Loader(
            path,
            20,
            order="shuffle",
            seed=1,
            strategy=strategy,
            bad_samples="skip",
            expected_epochs=1,
            world="single",
        ) as loader,
    ):
        warnings.simplefilter("ignore")
        delivered = set()
        for batch in loader:
            for number, row in zip(batch.indices, next(iter(batch.values())), strict=True):
                delivered.add(int(number))
                np.testing.assert_array_equal(row, rows[number])
        found = dict(loader.bad_samples())
    assert delivered == set(range(SAMPLES)) - bad
    assert set(found) == bad
    retried = [reason for reason in found.values() if ONCE not in reason]
    # Threads that come to the stretch together know nothing of each other.
    assert len(retried) <= 8, retried
    assert all(re.search(r"cannot read \d+ bytes at offset \d+ \(3 attempts\)", one) for one in retried)


def test_the_error_about_a_sample_whose_block_failed_tells_how_often_it_was_tried(spoiled, caplog):
    path, _, _ = spoiled
    caplog.set_level(logging.DEBUG, "forebay")
    with forebay.Loader(
        path, 20, order="sequential", strategy="pread", expected_epochs=1, world="single"
    ) as loader:
        with pytest.raises(forebay.StorageError, match="1 attempt,") as failed:
            for _ in loader:
                pass
        stats = loader.stats()
    assert (failed.value.errno, failed.value.filename) == (errno.EIO, str(path))
    assert (
        1 <= stats["failed_blocks"] == stats["levels"]["source"]["skipped"] == stats["node"]["failed_blocks"]
    )
    # The reader's attempts come first, then its failure.
    told = [one.fields for one in caplog.records if one.name == "forebay"]
    assert [one["attempt"] for one in told if one.get("path") == str(path)][:2] == [1, 2]
    assert any("3 attempts" in one["error"] for one in told if "loader" in one and "error" in one)


def attempts(message: str) -> str:
    """Return what a message says of the number of attempts."""
    return re.search(r"\((\d+ attempts?)", message)[1]


def test_single_samples_and_verify_are_read_as_often_as_blocks(spoiled, capsys):
    path, start, _ = spoiled
    bad = [number for number in range(SAMPLES) if is_bad(number, start)]
    dataset = forebay.open(path)
    with pytest.raises(forebay.StorageError) as failed:
        dataset[bad[5]]
    assert (failed.value.errno, failed.value.filename) == (errno.EIO, str(path))
    assert attempts(str(failed.value)) == "3 attempts"
    status, out, _ = support.run_command(capsys, "verify", path, "--json")
    found = json.loads(out)["bad"]
    assert status == 1
    assert {one["sample"] for one in found} <= set(bad)
    assert len(found) > 50
    tried = [attempts(one["message"]) for one in found]
    assert set(tried) <= {"1 attempt", "3 attempts"}
    assert tried.count("3 attempts") <= 8, "reads nearby are tried once"


def test_an_index_build_reads_as_often_as_blocks(backing, points):
    records = [np.random.default_rng(number).bytes(8192) for number in range(400)]
    write_tfrecord(backing / "x.tfrecord", records)
    server = pfs.Server.start(backing, points[:1], preset="none")
    try:
        server.fail_range("x.tfrecord", FROM, TO)
        with pytest.raises(forebay.StorageError) as failed:
            len(forebay.open(points[0] / "x.tfrecord", schema="raw"))
        assert (failed.value.errno, failed.value.filename) == (errno.EIO, str(points[0] / "x.tfrecord"))
        assert attempts(str(failed.value)) == "3 attempts"
    finally:
        server.end()


def test_levels_say_where_bytes_came_from(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((300, 5000), "uint8"))
    for strategy in ("pread", "mmap"):
        with forebay.Loader(
            tmp_path / "x.npy", 10, order="shuffle", expected_epochs=1, strategy=strategy, world="single"
        ) as loader:
            for _ in loader:
                pass
            stats = loader.stats()
        source, cache = stats["levels"]["source"], stats["levels"]["page_cache"]
        assert source["bytes"] == stats["read_bytes"] + stats["unstaged_bytes"]
        assert cache["bytes"] == stats["mmap_bytes"]
        used, unused = (source, cache) if strategy == "pread" else (cache, source)
        assert used["hits"] > 0
        assert used["bytes"] >= 300 * 5000
        assert unused["bytes"] == unused["hits"] == 0
        assert (source["operations"] > 0) == (strategy == "pread")
        assert stats["node"]["levels"] == stats["levels"]
