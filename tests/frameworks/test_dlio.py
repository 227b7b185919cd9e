"""forebay.dlio as DLIO uses it: a data loader, and a reader under DLIO's own data loaders."""

from __future__ import annotations

import importlib
import itertools
import sys
from functools import partial

import numpy as np
import pytest

import forebay
from forebay import OptionError

pytest.importorskip("dlio_benchmark", reason="the environment has no DLIO")

from frameworks.dlio_support import (
    LOADER,
    READER,
    arguments,
    epochs_of,
    loader_of,
    run,
    steps_of,
    workload,
    write,
)

FORMATS = ("npz", "npy", "tfrecord", "hdf5")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FOREBAY_NODE_MEMORY", "32MiB")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shuffle", ["off", "seed"])
def test_each_epoch_has_every_sample_once_with_the_bytes_of_the_file(tmp_path, format, shuffle):
    images = write(tmp_path, format)
    described = workload(tmp_path, format, reader={**LOADER, "sample_shuffle": shuffle}, train={"epochs": 2})
    orders = []
    for batches in epochs_of(loader_of(described), 2):
        assert len(batches) == 6
        ids = [number for batch in batches for number in batch.ids]
        assert sorted(ids) == list(range(12))
        for batch in batches:
            for number, pixels in batch.images():
                assert np.array_equal(pixels, images[number].reshape(-1))
        orders.append(ids)
    assert (orders[0] == list(range(12))) is (shuffle == "off")
    assert (orders[0] == orders[1]) is (shuffle == "off")


@pytest.mark.parametrize("format", ["npz", "npy"])
def test_files_of_different_shapes_are_delivered_with_their_own(tmp_path, format):
    images = write(tmp_path, format, varied=True)
    (batches,) = epochs_of(loader_of(workload(tmp_path, format, reader=LOADER)), 1)
    for batch in batches:
        for number, values in zip(batch.ids, batch.fields["x"], strict=True):
            assert np.array_equal(values, images[number][..., None])


def test_part_of_a_batch_is_left_out_as_dlio_counts_it(tmp_path):
    write(tmp_path, "hdf5")
    (batches,) = epochs_of(loader_of(workload(tmp_path, "hdf5", reader={**LOADER, "batch_size": 5})), 1)
    assert [len(batch.ids) for batch in batches] == [5, 5]


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        ({}, "sequential"),
        ({"sample_shuffle": "off", "file_shuffle": "off"}, "sequential"),
        ({"file_shuffle": False}, "sequential"),
        ({"file_shuffle": "seed"}, "group"),
        ({"sample_shuffle": "random"}, "shuffle"),
        ({"sample_shuffle": "seed", "file_shuffle": "seed"}, "shuffle"),
    ],
)
def test_the_order_is_what_the_workload_shuffles(tmp_path, reader, kind):
    write(tmp_path, "hdf5")
    found = loader_of(workload(tmp_path, "hdf5", reader={**LOADER, **reader}))
    found.read()
    assert found._loader.config.order.kind == kind
    found._loader.close()


def test_a_variable_chooses_another_order(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_ORDER", "group:samples=2,window=2")
    write(tmp_path, "hdf5")
    found = loader_of(workload(tmp_path, "hdf5", reader={**LOADER, "sample_shuffle": "seed"}))
    found.read()
    assert found._loader.config.order.kind == "group"
    found._loader.close()


def test_epochs_are_alike_where_the_seed_shall_not_change(tmp_path):
    write(tmp_path, "hdf5")
    described = workload(
        tmp_path,
        "hdf5",
        reader={**LOADER, "sample_shuffle": "seed"},
        train={"epochs": 2, "seed_change_epoch": False},
    )
    first, second = ([batch.ids for batch in batches] for batches in epochs_of(loader_of(described), 2))
    assert first == second


def test_the_loader_is_closed_with_the_last_epoch_and_not_before(tmp_path):
    write(tmp_path, "hdf5")
    found = loader_of(workload(tmp_path, "hdf5", reader=LOADER, train={"epochs": 2}))
    for _ in itertools.islice(epochs_of(found, 2), 1):
        pass
    next(iter(found.next()))
    found.finalize()
    with pytest.raises(forebay.ForebayError, match="'dlio-train' is closed"):
        next(iter(found.next()))


def test_emulated_preprocessing_runs_in_the_threads_of_the_workload(tmp_path):
    images = write(tmp_path, "tfrecord")
    described = workload(tmp_path, "tfrecord", reader={**LOADER, "preprocess_time": 0.001, "read_threads": 3})
    found = loader_of(described)
    (batches,) = epochs_of(found, 1)
    assert found._loader.config.per_sample.workers == 3
    assert {number for batch in batches for number in batch.ids} == set(images)


@pytest.mark.parametrize(
    ("format", "dataset", "message"),
    [
        ("hdf5", {"num_samples_per_file": 5}, "expected 20 samples in 4 files"),
        ("npz", {"num_samples_per_file": 2}, "num_samples_per_file: expected 1 for npz files, found 2"),
        ("npz", {"format": "csv"}, "expected one of tfrecord, hdf5, npz, npy, found csv"),
    ],
)
@pytest.mark.parametrize("plug_in", ["loader", "reader"])
def test_a_workload_that_does_not_fit_the_data_is_refused(tmp_path, format, dataset, message, plug_in):
    write(tmp_path, format)
    described = workload(tmp_path, format, reader=LOADER | READER, dataset=dataset)
    if dataset.get("format"):
        for path in (tmp_path / format / "train").iterdir():
            path.rename(path.with_suffix(".csv"))
    refused = loader_of(described).read if plug_in == "loader" else partial(_reader, described)
    with pytest.raises(OptionError, match=message):
        refused()


def test_a_workload_without_files_is_refused(tmp_path):
    (tmp_path / "npz" / "train").mkdir(parents=True)
    with pytest.raises(OptionError, match="the workload has no files for train"):
        loader_of(workload(tmp_path, "npz", reader=LOADER)).read()


def test_some_of_the_files_of_a_folder_can_be_the_workload(tmp_path):
    images = write(tmp_path, "npz")
    found = loader_of(workload(tmp_path, "npz", reader=LOADER))
    kept = found._args.file_list_train[1:9:2]
    found._args.file_list_train = kept
    (batches,) = epochs_of(found, 1)
    values = [value for batch in batches for value in batch.fields["x"]]
    for value, number in zip(values, (1, 3, 5, 7), strict=True):
        assert np.array_equal(value[..., 0], images[number])


def _reader(described, thread=0):
    from dlio_benchmark.common.enumerations import DatasetType
    from dlio_benchmark.reader.reader_factory import ReaderFactory

    found = arguments(described)
    return ReaderFactory.get_reader(found.format, DatasetType.TRAIN, thread, 1)


@pytest.mark.parametrize("format", FORMATS)
def test_the_reader_reads_the_samples_that_dlio_asks_for(tmp_path, format, monkeypatch):
    images = write(tmp_path, format)
    indexed = _reader(workload(tmp_path, format, reader={**READER, "data_loader_sampler": "index"}))
    asked = []
    read = indexed._files.dataset.read
    monkeypatch.setattr(
        type(indexed._files.dataset), "read", lambda _, ids: asked.append(list(ids)) or read(ids)
    )
    assert indexed.read_index(7, 1) is indexed._args.resized_image
    assert asked == [[7]]
    monkeypatch.undo()
    (data,) = read([7])[
        "data" if format in ("npz", "npy") else "image" if format == "tfrecord" else "records"
    ]
    parse = indexed._files.parse
    found = data if parse is None else parse({"data": data})["x"]
    assert np.array_equal(found.reshape(-1), images[7].reshape(-1))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_reader_iterates_all_samples_of_a_thread_in_each_epoch(tmp_path, threads, monkeypatch):
    write(tmp_path, "hdf5")
    described = workload(
        tmp_path,
        "hdf5",
        reader={
            **READER,
            "data_loader": "tensorflow",
            "data_loader_sampler": "iterative",
            "read_threads": threads,
        },
    ) | {"framework": "tensorflow"}
    readers = [_reader(described, thread) for thread in range(threads)]
    for _ in range(2):
        assert [sum(1 for _ in reader.next()) for reader in readers] == [6 // threads] * threads
    whole = _reader(described, -1)
    asked = []
    monkeypatch.setattr(whole, "_read", lambda places: asked.extend(whole._files.ids(places)))
    assert sum(1 for _ in whole.next()) == 6
    assert sorted(asked) == list(range(12))


# A whole run imports TensorFlow on each rank, 5 s of a core, so there are few of them.
def test_dlio_trains_on_two_ranks_with_the_loader(tmp_path):
    write(tmp_path, "tfrecord")
    described = workload(
        tmp_path,
        "tfrecord",
        reader={**LOADER, "data_loader": "custom", "sample_shuffle": "seed"},
        train={"epochs": 2},
    )
    found = run(described, tmp_path / "run", 2)
    assert found["summary"]["num_accelerators"] == 2
    assert steps_of(found) == [[3, 3], [3, 3]]
    assert all(0 < one <= 100 for one in found["summary"]["metric"]["train_au_percentage"])


def test_dlio_trains_and_validates_with_two_loaders(tmp_path):
    write(tmp_path, "npz")
    train, valid = tmp_path / "npz/train", tmp_path / "npz/valid"
    for path in sorted(train.iterdir())[:4]:
        (valid / path.name).write_bytes(path.read_bytes())
    described = workload(
        tmp_path,
        "npz",
        reader={**LOADER, "data_loader": "custom", "batch_size_eval": 2},
        workflow={"evaluation": True},
        dataset={"num_files_eval": 4},
        evaluation={"eval_time": 0.001},
        train={"epochs": 2},
    )
    found = run(described, tmp_path / "run", 1)
    assert steps_of(found) == [[6, 6]]
    assert [len(found["ranks"][0][epoch]["load"]["eval"]) for epoch in ("1", "2")] == [2, 2]


@pytest.mark.parametrize(("format", "loader"), [("npz", "pytorch"), ("tfrecord", "tensorflow")])
def test_dlio_trains_with_its_own_loaders_and_the_reader(tmp_path, format, loader):
    write(tmp_path, format)
    described = workload(tmp_path, format, reader={**READER, "data_loader": loader, "read_threads": 2})
    found = run({**described, "framework": loader}, tmp_path / "run", 1)
    assert steps_of(found) == [[6]]


def test_without_dlio_the_error_says_what_to_install(monkeypatch):
    for module in list(sys.modules):
        if module.startswith("forebay.dlio"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "dlio_benchmark", None)
    with pytest.raises(ImportError, match=r"forebay\.dlio: dlio_benchmark cannot be imported") as found:
        importlib.import_module("forebay.dlio")
    assert "pip install 'dlio-benchmark==2.0.0'" in str(found.value)
