"""Files that change while they are read: every format says which one, and nothing crashes."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import lmdb
import numpy as np
import pytest

import forebay
from support.format_files import FORMATS, SAMPLES, opened, write


def bytes_of(sample: object) -> np.ndarray:
    """Return the bytes of a sample of one field, or of records."""
    value = next(iter(sample.values())) if isinstance(sample, dict) else sample
    return np.frombuffer(bytes(value), "uint8")


def replace(path: Path, other: Path) -> None:
    other.replace(path)


def shorten(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(9000))


def cut_to_nothing(path: Path, other: Path) -> None:
    os.truncate(path, 0)


CHANGES = {"replaced": replace, "truncated": shorten, "grown": lengthen, "emptied": cut_to_nothing}


@pytest.fixture(params=FORMATS)
def files(request, tmp_path):
    """The format, a file, and another one of the same size and other samples."""
    path, other = (write(tmp_path / name, request.param, shift) for name, shift in (("one", 0), ("two", 100)))
    return request.param, path, other


def changes(files, tmp_path: Path, names=tuple(CHANGES)):
    """Yield the changes for some names, each with its own file and another one to make it with."""
    kind, path, other = files
    for name in names:
        # LMDB files grow as their writers go on, which harms no reader.
        if (kind, name) == ("lmdb", "grown"):
            continue
        here, there = tmp_path / f"{name}-{path.name}", tmp_path / f"other-{name}"
        shutil.copy(path, here)
        shutil.copy(other, there)
        yield name, CHANGES[name], here, there


def epoch(loader: forebay.Loader, change) -> None:
    """Go through an epoch in the middle of which ``change`` is called."""
    for number, batch in enumerate(loader):
        for name in batch:
            np.asarray(batch[name][0]).sum()
        if number == 1:
            change()


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("pread", ["replaced", "truncated", "grown", "emptied"]),
        ("io_uring", ["replaced", "truncated"]),
        ("mmap", ["replaced", "truncated", "grown", "emptied"]),
        ("forebay", ["replaced", "truncated", "grown", "emptied"]),
    ],
)
def test_a_loader_names_a_file_that_changed_in_mid_epoch(files, tmp_path, strategy, names):
    kind = files[0]
    for name, change, here, there in changes(files, tmp_path, names):
        loader = forebay.Loader(
            opened(here, kind),
            batch_size=4,
            order="shuffle",
            strategy=strategy,
            world="single",
            name=name,
            expected_epochs=1,
        )
        with loader, pytest.raises(forebay.StorageError, match=here.name):
            epoch(loader, lambda change=change, here=here, there=there: change(here, there))


def test_a_loader_names_a_file_that_changed_before_it_was_made(files, tmp_path):
    kind = files[0]
    for name, change, here, there in changes(files, tmp_path):
        dataset = opened(here, kind)
        change(here, there)
        with (
            pytest.raises(forebay.StorageError, match=here.name),
            forebay.Loader(dataset, batch_size=4, world="single", name=name, expected_epochs=1) as loader,
        ):
            epoch(loader, lambda: None)


def test_a_dataset_names_a_file_that_changed(files, tmp_path):
    kind = files[0]
    for _, change, here, there in changes(files, tmp_path):
        dataset = opened(here, kind)
        np.testing.assert_array_equal(np.unique(bytes_of(dataset[SAMPLES - 1])), [SAMPLES - 1])
        change(here, there)
        with pytest.raises(forebay.StorageError, match=here.name):
            dataset[SAMPLES - 1]


def test_a_file_that_grew_harms_no_reader_of_lmdb(tmp_path):
    path = write(tmp_path / "one", "lmdb", 0)
    dataset = opened(path, "lmdb")
    lengthen(path, path)
    for number in range(SAMPLES):
        np.testing.assert_array_equal(np.unique(bytes_of(dataset[number])), [number])


def test_a_database_that_is_written_meanwhile_is_said_to_be_not_damaged(tmp_path, says):
    with lmdb.open(str(tmp_path / "one"), map_size=1 << 28) as environment:

        def transaction(number):
            with environment.begin(write=True) as one:
                for sample in range(300):
                    one.put(b"%04d" % sample, bytes([number]) * 20_000)

        transaction(0)
        # Pages are read behind the writer's back: those of the snapshot that was opened are used
        # again after a while.
        with forebay.Loader(
            tmp_path / "one",
            4,
            order="sequential",
            strategy="pread",
            node_memory="2MiB",
            world="single",
            expected_epochs=1,
        ) as loader:

            def act():
                for number in range(1, 8):
                    transaction(number)

            with says(forebay.StorageError):
                epoch(loader, act)
            assert loader.state_dict()["step"] < len(loader)


def test_a_file_that_was_only_touched_is_a_warning(files):
    kind, path, _ = files
    dataset = opened(path, kind)
    with (
        warnings.catch_warnings(record=True) as told,
        forebay.Loader(dataset, batch_size=4, world="single", expected_epochs=1) as loader,
    ):
        warnings.simplefilter("always")
        epoch(loader, lambda: os.utime(path, (1, 1)))
    texts = [str(one.message) for one in told if "changed or touched" in str(one.message)]
    assert len(texts) == (0 if kind == "lmdb" else 1)
    assert all(path.name in text for text in texts)


def test_a_file_that_was_rewritten_with_its_time_set_back_is_a_warning(files):
    kind, path, _ = files
    dataset = opened(path, kind)
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1

    def rewrite():
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def attributes():
        path.chmod(0o600 if path.stat().st_mode & 0o77 else 0o644)

    for change, warned in ((attributes, False), (rewrite, kind != "lmdb")):
        with (
            warnings.catch_warnings(record=True) as told,
            forebay.Loader(
                dataset, batch_size=4, world="single", expected_epochs=1, bad_samples="skip"
            ) as loader,
        ):
            warnings.simplefilter("always")
            epoch(loader, change)
        texts = [str(one.message) for one in told if "may have been rewritten" in str(one.message)]
        assert [path.name in text for text in texts] == [True] * warned
        dataset = opened(path, kind)


def test_a_file_that_is_gone_is_read_to_the_end(files):
    kind, path, _ = files
    with forebay.Loader(
        opened(path, kind), batch_size=4, order="sequential", world="single", expected_epochs=1
    ) as loader:
        found = []
        for batch in loader:
            if not found:
                path.unlink()
            (name,) = batch
            found += [int(bytes_of(bytes(np.ascontiguousarray(value)))[0]) for value in batch[name]]
    assert found == list(range(SAMPLES))
