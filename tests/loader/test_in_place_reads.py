"""In-place reads, which bypass staging: many at once; a failed read fails only its sample."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from tests.formats.test_tfrecord import write as write_tfrecord

import forebay
from forebay_lab import pfs
from support.emulator import needs_fuse

pytestmark = needs_fuse

SAMPLES = 60
SAMPLE_BYTES = 100_000
FROM, TO = 1 << 20, 2 << 20


def records(count, length, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, length), "uint8")


def npy(folder):
    rows = records(SAMPLES, SAMPLE_BYTES, 1)
    np.save(folder / "x.npy", rows)
    start = (folder / "x.npy").stat().st_size - rows.size
    return "x.npy", {}, rows, [start + number * SAMPLE_BYTES for number in range(SAMPLES)]


def example(folder):
    """Records that have to be decoded, so that none goes straight to its place."""
    rows = records(SAMPLES, SAMPLE_BYTES, 2)
    write_tfrecord(folder / "x.tfrecord", [bytes_example(row.tobytes()) for row in rows])
    length = ((folder / "x.tfrecord").stat().st_size) // SAMPLES
    return "x.tfrecord", {}, rows, [number * length for number in range(SAMPLES)]


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(payload, number=1):
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def bytes_example(value):
    """A tf.train.Example with one feature of bytes."""
    feature = field(field(value))
    return field(field(field(b"data") + field(feature, 2)))


@pytest.fixture
def server(backing, points):
    server = pfs.Server.start(backing, points[:1], preset="none")
    yield server, backing, points[0]
    server.end()


@pytest.mark.parametrize("make", [npy, example])
@pytest.mark.parametrize("strategy", ["forebay", "pread", "io_uring"])
def test_a_stretch_that_fails_costs_its_samples_and_no_others(server, make, strategy):
    server, backing, mount = server
    name, options, rows, starts = make(backing)
    len(forebay.open(mount / name, **options))
    server.drop_caches(mount)
    server.fail_range(name, FROM, TO)
    ends = [*starts[1:], (backing / name).stat().st_size]
    touched = {n for n in range(SAMPLES) if starts[n] < TO and ends[n] > FROM}
    inside = {n for n in touched if starts[n] >= FROM and ends[n] <= TO}
    with (
        warnings.catch_warnings(),
        forebay.Loader(
            mount / name,
            20,
            order="shuffle",
            seed=1,
            strategy=strategy,
            bad_samples="skip",
            expected_epochs=1,
            **options,
        ) as loader,
    ):
        warnings.simplefilter("ignore")  # about each sample that is skipped
        delivered = set()
        for batch in loader:
            for place, number in enumerate(batch.indices):
                delivered.add(int(number))
                np.testing.assert_array_equal(content(batch, place), rows[number])
        bad = dict(loader.bad_samples())
        stats = loader.stats()
    assert inside <= set(bad) <= touched
    assert delivered == set(range(SAMPLES)) - set(bad)
    assert stats["unstaged_bytes"] > SAMPLE_BYTES, "nothing was read in place"
    assert all(re.search(r"cannot read \d+ bytes at offset \d+", one) for one in bad.values())


def content(batch, place):
    value = next(iter(batch.values()))[place]
    return np.frombuffer(value, "uint8") if isinstance(value, bytes) else np.asarray(value).reshape(-1)
