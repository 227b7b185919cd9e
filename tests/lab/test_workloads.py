"""Workloads: their files are sound, and the datasets hold what they say."""

from __future__ import annotations

import errno
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from types import SimpleNamespace

import lmdb
import numpy as np
import pytest

import forebay
from forebay import FormatError, OptionError, StorageError
from forebay.tools.convert import datum
from forebay_lab.bench import containers, generate, workload
from forebay_lab.bench.sample import MIN_SAMPLE_BYTES, Field, Sample
from support import DEADLINE_S, ROOT

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'forebay[bench]'")
google_crc32c = pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")

NAMES = workload.names()
GIB = 2**30

# Bytes of the full datasets as the publications give them, in GiB (680 GB of Neuron-Inverter are
# 633 GiB).
PUBLISHED_GIB = {
    "cosmoflow-async": 384,
    "neuron-inverter": 680e9 / GIB,
    "monarch-100": 100,
    "monarch-200": 200,
}

SMALL = Sample(1000, 0, "raw", (Field("data", "uint8", (1000,)),))
VARIED = Sample(3000, 700, "raw", (Field("data", "uint8", None),))
MIXED = Sample(
    56,
    0,
    "raw",
    (Field("spikes", "float32", (4, 3)), Field("counts", "uint16", (4,))),
)


def recipe(container, sample=SMALL, samples=25, files=1, seed=0):
    return generate.Recipe("test", container, samples, files, sample, seed)


def payloads(made):
    """Contents of all samples, as the generator makes them."""
    return [bytes(payload) for block in generate.blocks(made) for _, payload in block]


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_file_is_sound_and_every_number_has_a_source(name):
    found = workload.load(name)
    assert found.name == name
    assert found.variant() == found.variants[0]
    # load() refuses a number without a source and a source without a number; none of them is empty
    # talk.
    assert {"sample.bytes", "dataset.samples", "dataset.files"} <= found.sources.keys()
    assert all(len(text) > 10 for text in found.sources.values())


def test_all_workloads_of_the_study_are_there():
    assert {
        "cifar10-large", "imagenet-large", "fefs", "cosmoflow", "cosmoflow-async", "neuron-inverter", "monarch-100",
        "monarch-200", "deepio-cifar10", "unet3d", "resnet50", "bert",
    } == set(NAMES)  # fmt: skip


@pytest.mark.parametrize(("name", "gib"), PUBLISHED_GIB.items())
def test_sizes_and_counts_come_to_the_published_bytes(name, gib):
    found = workload.load(name)
    assert found.samples * found.sample.bytes / GIB == pytest.approx(gib, rel=0.05)


@pytest.mark.parametrize(
    ("name", "gib"), [("cifar10-large", 190.7), ("imagenet-large", 1121), ("fefs", 239.5)]
)
def test_databases_come_to_the_published_bytes(name, gib):
    found = workload.load(name)
    needed = containers.minimum_bytes("lmdb", found.sample, found.samples, 1)
    assert needed / GIB == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize("name", ["unet3d", "resnet50", "cosmoflow"])
def test_a_storage_benchmark_has_its_utilisation_line(name):
    found = workload.load(name)
    assert found.benchmark.utilisation_line == (0.7 if name == "cosmoflow" else 0.9)
    assert found.least_steps == 500


def test_a_batch_per_rank_is_that_of_the_published_ranks(says):
    cifar = workload.load("cifar10-large")
    assert [(one.ranks, one.batch_samples) for one in cifar.variants] == [(512, 36), (9216, 2), (512, 8)]
    assert cifar.variant("bebop-9216").step_seconds == pytest.approx(0.01)
    with says(OptionError, "nothing", 512):
        cifar.variant("nothing")


def test_scaling_shrinks_samples_files_and_memory_and_nothing_else(says):
    found = workload.load("resnet50")
    assert found.scaled(1) == workload.Scaled(1_281_024, 1024, None)
    assert found.scaled(0.01) == workload.Scaled(12_810, 10, None)
    assert found.scaled(1e-9) == workload.Scaled(1, 1, None)
    assert found.scaled(0.01, "lmdb").files == 1
    assert found.scaled(0.0001, "npz").files == 128
    fefs = workload.load("fefs").scaled(0.5)
    assert fefs.node_memory_bytes == 48 * GIB
    for scale in (0, -1, 1.5, float("nan")):
        with says(OptionError, 0):
            found.scaled(scale)
    with says(OptionError, "zip"):
        found.scaled(1, "zip")


def test_the_rules_of_scaling_are_data():
    rules = workload.scaling()
    assert "samples" in rules.scaled
    assert any("stripe" in one for one in rules.fixed)
    assert any("100 steps" in ratio for ratio, _ in rules.keep)


def broken(directory, old, new):
    """The file of `fefs` with something changed."""
    text = (ROOT / "lab/python/forebay_lab/bench/workloads/fefs.toml").read_text()
    assert old in text
    path = directory / "fefs.toml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("bytes = 196_608", "bytes = 0", (8, 0)),
        (
            "bytes = 196_608",
            "bytes = 196_600",
            (196600,),
        ),
        ('container = "lmdb"', 'container = "zip"', ()),
        (
            "step_seconds = 0.29",
            "step_seconds = -1",
            (1, 0),
        ),
        (
            "step_seconds = 0.29",
            "step_second = 0.29",
            (1,),
        ),
        ("batch_samples = 128", "global_batch_samples = 100", ()),
        ('name = "fefs"', 'name = "other"', ()),
        ('name = "resnet50"', 'name = "alexnet"', ()),
        ("files = 1\n", "files = 9_999_999\n", ()),
        ("files = 1\n", "", ("nothing",)),
        (
            '"sample.bytes" =',
            '"sample.byte" =',
            (),
        ),
        ("[sources]\n", '[sources]\n"x.y" = "z"\n', ()),
        ("[sample]", "[sample", ("TOML",)),
    ],
)
def test_an_error_in_a_workload_file_names_file_and_key(tmp_path, old, new, values, says):
    with says(FormatError, *values) as caught:
        workload.load_file(broken(tmp_path, old, new))
    assert str(tmp_path / "fefs.toml") in str(caught.value)


def test_an_unknown_workload_is_an_error_that_names_those_there_are(tmp_path, says):
    with says(OptionError, "nothing"):
        workload.prepare("nothing", 1, tmp_path)


def test_samples_of_an_lmdb_are_caffe_records_that_the_engine_reads(tmp_path):
    found = workload.prepare("cifar10-large", 2e-6, tmp_path)
    assert (found.format, found.samples, found.sample_bytes) == ("lmdb", 100, 3072)
    assert (found.batch_size, found.compute_seconds) == (36, pytest.approx(0.18))
    dataset = forebay.open(found.path)
    assert len(dataset) == 100
    with (
        lmdb.open(str(found.path), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        for number, (key, value) in enumerate(transaction.cursor()):
            pixels, label = datum.decode(value)
            assert (key, label) == (b"%08d" % number, number % containers.LABELS)
            assert generate.sample_number(pixels) == number
            assert dataset[number]["image"].tobytes() == pixels
            # A page of its own, as published, and noise: nothing to gain by compressing it.
            assert len(zlib.compress(pixels)) > 0.98 * len(pixels)


def test_an_lmdb_holds_every_workload(tmp_path):
    found = workload.prepare("cosmoflow", 1e-5, tmp_path, "lmdb")
    assert found.samples == 5
    assert any("the publication used tfrecord in 524,288 files" in note for note in found.notes)
    dataset = forebay.open(found.path, schema="raw")
    lengths = [len(dataset[number]) for number in range(5)]
    assert sum(lengths) == pytest.approx(5 * found.sample_bytes, abs=5)
    assert len(set(lengths)) == 5
    assert [generate.sample_number(dataset[number]) for number in range(5)] == list(range(5))


def test_an_hdf5_file_has_a_dataset_per_field(tmp_path):
    made = recipe("hdf5", MIXED, samples=25, files=3)
    found = generate.generate(made, tmp_path)
    assert len(found.paths) == 3
    rows = []
    for path in found.paths:
        with h5py.File(path) as file:
            assert (file["spikes"].dtype, file["spikes"].shape[1:]) == (np.float32, (4, 3))
            assert (file["counts"].dtype, file["counts"].chunks) == (np.uint16, None)
            spikes, counts = file["spikes"][:], file["counts"][:]
            assert np.isfinite(spikes).all()
            rows += [a.tobytes() + b.tobytes() for a, b in zip(spikes, counts, strict=True)]
            assert file["label"][:].tolist() == [generate.sample_number(row) for row in rows[-len(spikes) :]]
    assert rows == payloads(made)


def test_an_hdf5_file_holds_samples_of_any_length(tmp_path):
    made = recipe("hdf5", VARIED)
    (path,) = generate.generate(made, tmp_path).paths
    with h5py.File(path) as file:
        assert [row.tobytes() for row in file["data"][:]] == payloads(made)


def read_tfrecord(path):
    """Records of a file, with both checksums checked."""
    data = path.read_bytes()

    def check(part, masked):
        value = google_crc32c.value(part)
        assert struct.unpack("<I", masked)[0] == ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF

    at = 0
    while at < len(data):
        check(data[at : at + 8], data[at + 8 : at + 12])
        end = at + 12 + struct.unpack_from("<Q", data, at)[0]
        check(data[at + 12 : end], data[end : end + 4])
        yield data[at + 12 : end]
        at = end + 4


def parts(message):
    """(field, value) of a protobuf message of lengths and varints."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            shift += 7
            at += 1
            if message[at - 1] < 0x80:
                return value

    while at < len(message):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            value, at = message[at : at + value], at + value
        yield tag >> 3, value


def features(record):
    """Features of a tf.train.Example."""
    ((_, entries),) = parts(record)
    found = {}
    for _, entry in parts(entries):
        (_, name), (_, feature) = parts(entry)
        ((kind, values),) = parts(feature)
        found[name.decode()] = (kind, [value for _, value in parts(values)])
    return found


@pytest.mark.parametrize("sample", [SMALL, VARIED, MIXED], ids=["equal", "varied", "mixed"])
def test_a_tfrecord_file_is_a_chain_of_checked_examples(tmp_path, sample):
    made = recipe("tfrecord", sample, samples=25, files=3)
    found = generate.generate(made, tmp_path)
    names = [path.name for path in found.paths]
    assert names == [f"part-{number:05d}-of-00003.tfrecord" for number in range(3)]
    records = [record for path in found.paths for record in read_tfrecord(path)]
    rows = []
    for number, record in enumerate(records):
        example = features(record)
        assert example.pop("label") == (3, [bytes([number])])
        assert list(example) == [field.name for field in sample.fields]
        assert all(kind == 1 for kind, _ in example.values())
        rows.append(b"".join(values[0] for _, values in example.values()))
    assert rows == payloads(made)


def test_an_npz_file_holds_one_sample(tmp_path):
    made = recipe("npz", VARIED, samples=7, files=7)
    found = generate.generate(made, tmp_path)
    rows = []
    for number, path in enumerate(found.paths):
        with np.load(path) as arrays:
            assert arrays["y"].tolist() == [number]
            rows.append(arrays["data"].tobytes())
    assert rows == payloads(made)


def test_equal_recipes_give_equal_bytes_and_another_seed_gives_others(tmp_path):
    first = payloads(recipe("npz", VARIED, samples=500, files=500))
    again = payloads(recipe("npz", VARIED, samples=500, files=500))
    other = payloads(recipe("npz", VARIED, samples=500, files=500, seed=1))
    assert first == again
    assert len(set(first) | set(other)) == 1000
    assert all(generate.sample_number(one) == number for number, one in enumerate(first))


def test_varied_sizes_have_the_mean_and_the_deviation(tmp_path):
    drawn = generate.sizes(recipe("tfrecord", VARIED, samples=20_000))
    assert drawn.mean() == pytest.approx(3000, rel=0.01)
    assert drawn.std() == pytest.approx(700, rel=0.03)
    wide = replace(VARIED, deviation_bytes=5000)
    assert generate.sizes(recipe("tfrecord", wide, samples=1000)).min() >= MIN_SAMPLE_BYTES


@pytest.mark.parametrize("sample", [SMALL, VARIED, MIXED], ids=["equal", "varied", "mixed"])
@pytest.mark.parametrize("container", workload.CONTAINERS)
def test_the_room_asked_for_is_enough(tmp_path, container, sample):
    samples = 400
    files = {"lmdb": 1, "npz": samples}.get(container, 4)
    found = generate.generate(recipe(container, sample, samples, files), tmp_path)
    assert found.file_bytes <= containers.minimum_bytes(container, sample, samples, files) * 1.05
    assert found.sample_bytes <= found.file_bytes


def test_a_dataset_is_used_again_and_a_damaged_one_is_made_again(tmp_path):
    made = recipe("tfrecord")
    first = generate.generate(made, tmp_path)
    again = generate.generate(made, tmp_path)
    assert (first.made, again.made) == (True, False)
    assert again.paths == first.paths
    whole = first.paths[0].read_bytes()
    first.paths[0].write_bytes(whole[:-1])
    assert generate.generate(made, tmp_path).made
    assert first.paths[0].read_bytes() == whole


def test_a_reader_that_leaves_its_lock_file_does_not_spoil_a_dataset(tmp_path):
    made = recipe("lmdb")
    found = generate.generate(made, tmp_path)
    (found.paths[0] / "lock.mdb").unlink(missing_ok=True)
    with lmdb.open(str(found.paths[0])) as environment, environment.begin() as transaction:
        assert transaction.stat()["entries"] == 25
    assert not generate.generate(made, tmp_path).made


def test_what_an_older_recipe_made_is_made_again(tmp_path):
    made = recipe("tfrecord")
    place = generate.generate(made, tmp_path).directory
    manifest = json.loads((place / generate.MANIFEST).read_text())
    manifest["recipe"]["version"] = 0
    (place / generate.MANIFEST).write_text(json.dumps(manifest))
    assert generate.generate(made, tmp_path).made


KILLED = """
import os, pathlib, signal, sys
from forebay_lab.bench import workload
def progress(what, done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
workload.prepare("resnet50", 1e-4, pathlib.Path(sys.argv[1]), progress=progress)
"""


def test_what_a_killed_run_leaves_is_not_used_and_goes(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, timeout=DEADLINE_S)
    assert done.returncode == -9
    (partial,) = tmp_path.glob("*.partial")
    assert list(partial.iterdir())
    found = workload.prepare("resnet50", 1e-4, tmp_path)
    assert found.made
    assert not partial.exists()
    assert sum(1 for path in found.paths for _ in read_tfrecord(path)) == found.samples == 128


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(containers.WRITERS, "tfrecord", full)
    with pytest.raises(OSError) as failed:  # noqa: PT011 - its number says which
        generate.generate(recipe("tfrecord"), tmp_path)
    assert failed.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob("test-*"))


def test_too_little_room_is_an_error_that_names_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    with pytest.raises(StorageError, match=r"\b1,1\d\d MiB .*\b3 MiB"):
        generate.generate(recipe("tfrecord", samples=1_000_000), tmp_path)
    assert not list(tmp_path.glob("test-*"))


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path, says):
    made = recipe("tfrecord")
    place = tmp_path / made.directory_name
    place.mkdir()
    (place / "thesis.txt").write_text("irreplaceable")
    with says(StorageError):
        generate.generate(made, tmp_path)
    assert (place / "thesis.txt").read_text() == "irreplaceable"


def test_a_missing_package_is_named_with_what_to_install(tmp_path, monkeypatch, says):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with says(StorageError, "forebay[bench]"):
        generate.generate(recipe("hdf5"), tmp_path)


def test_progress_reaches_the_number_of_samples(tmp_path):
    calls = []
    generate.generate(recipe("npz", samples=9, files=9), tmp_path, lambda *call: calls.append(call))
    assert calls[-1] == ("generating test", 9, 9)


def test_the_page_on_workloads_says_what_the_files_say():
    text = (ROOT / "docs/workloads.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", text, flags=re.MULTILINE))
    assert list(rows) == NAMES
    for name, row in rows.items():
        found = workload.load(name)
        sample, variant = found.sample, found.variant()
        size = f"{sample.bytes:,}" + (f" ({sample.deviation_bytes:,})" * bool(sample.deviation_bytes))
        line = found.benchmark.utilisation_line
        step = variant.step_seconds
        assert row.split(" | ") == [
            size,
            f"{found.samples:,}",
            f"{found.container}, {found.files:,}",
            f"{variant.batch_samples:,}",
            f"{step:g}" if step is not None else "–",
            "; ".join(one.name for one in found.variants),
            f"{line:.2f}" if line else "–",
        ], name
