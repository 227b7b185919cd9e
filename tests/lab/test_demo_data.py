"""The demo's dataset: Datum records, varied digits, an LMDB database written completely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forebay.tools.convert import datum
from forebay_lab.demo import data, sources
from support.demo import SAMPLES, quiet


@pytest.mark.parametrize("label", [0, 1, 9, 127, 128, 2**31 - 1])
def test_a_datum_gives_back_its_pixels_and_label(label: int):
    pixels = bytes(range(24))
    found, found_label = datum.decode(datum.encode(pixels, label, channels=2, height=3, width=4))
    assert (bytes(found), found_label) == (pixels, label)


def test_a_datum_of_cifar_size_has_the_length_that_caffe_writes():
    assert len(datum.encode(bytes(3072), 1, channels=3, height=32, width=32)) == 3083


def test_datum_fields_come_in_any_order_unknown_ones_are_skipped_and_the_last_duplicate_wins():
    negative = b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    record = b"\x28\x05" + b"\x35\0\0\x80\x3f" + b"\x22\x01a" + b"\x51" + bytes(8) + b"\x22\x02bc" + negative
    found, label = datum.decode(record)
    assert (bytes(found), label) == (b"bc", -1)
    assert datum.decode(b"")[1] == 0


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (b"\x22\x05abc", (5, 3)),
        (b"\x28\xff", ()),
        (b"\x23", (3,)),
        (b"\x35\0\0", ()),
    ],
)
def test_a_damaged_datum_is_an_error_that_says_where(record: bytes, values, says):
    with says(ValueError, *values):
        datum.decode(record)


def test_a_datum_with_the_wrong_number_of_pixels_is_refused(says):
    with says(ValueError, 24, 23):
        datum.encode(bytes(23), 0, channels=2, height=3, width=4)


def test_held_out_images_are_kept_apart_in_every_class():
    labels = np.repeat(np.arange(10), 50)
    training, held_out = data.part(labels, seed=0)
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out]) == list(range(500))
    assert (np.bincount(labels[held_out]) == 10).all()


@pytest.mark.full
def test_no_sample_is_made_from_a_held_out_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from sklearn.datasets import load_digits

    used: list[np.ndarray] = []
    plain = data.vary

    def spy(padded, numbers, generator):
        used.append(padded[numbers])
        return plain(padded, numbers, generator)

    monkeypatch.setattr(data, "vary", spy)
    made = data.prepare(tmp_path / "data", data.Spec(1000), quiet)
    with np.load(made.held_out) as file:
        held_out = file["number"]
    images = data.enlarge(load_digits().images)
    shown = {image[4:-4, 4:-4].tobytes() for image in np.concatenate(used)}
    hidden = {images[number].tobytes() for number in held_out}
    everything = {image.tobytes() for image in images}
    assert len(hidden) > 300
    assert shown <= everything - hidden


def test_the_set_is_a_caffe_database_with_mixed_classes(dataset: data.DemoDataset):
    import lmdb

    with (
        lmdb.open(str(dataset.database), readonly=True, lock=False) as environment,
        environment.begin() as read,
    ):
        records = list(read.cursor())
    assert [key for key, _ in records] == [b"%08d" % i for i in range(SAMPLES)]
    labels = np.array([datum.decode(value)[1] for _, value in records])
    assert {len(datum.decode(value)[0]) for _, value in records} == {3072}
    assert (np.bincount(labels, minlength=10) > SAMPLES / 20).all()
    # Sorted by class, neighbours would nearly always agree; by chance one in ten does.
    assert (labels[1:] == labels[:-1]).mean() < 0.2


def test_equal_specs_give_equal_bytes_and_a_finished_set_is_used_again(
    dataset: data.DemoDataset, tmp_path: Path
):
    other = data.prepare(tmp_path / "again", data.Spec(SAMPLES), quiet)
    assert other.made
    # Everything but the meta pages, which hold the size of the map alone, and unused bytes inside
    # pages.
    assert len(other.file.read_bytes()) == len(dataset.file.read_bytes())
    batches = []
    for one in (dataset, other):
        source = sources.PyLmdb(one.database, 500, 0, 1)
        batches.append([images.copy() for images, _ in source.epoch(0)])
        source.close()
    assert (np.concatenate(batches[0]) == np.concatenate(batches[1])).all()
    assert not data.prepare(other.directory, data.Spec(SAMPLES), quiet).made
    assert data.prepare(other.directory, data.Spec(1000), quiet).made


def test_a_directory_with_other_things_in_it_is_left_alone(place: Path, says):
    (place / "thesis.tex").write_text("years of work")
    with says(data.DemoError):
        data.prepare(place, data.Spec(1000), quiet)
    assert (place / "thesis.tex").read_text() == "years of work"


def test_an_interrupted_writing_leaves_nothing(place: Path):
    def stop(done: int, every: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.prepare(place / "data", data.Spec(1000), stop)
    assert list(place.iterdir()) == []


def test_a_full_disk_is_an_error_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, place: Path, says
):
    usage = data.shutil.disk_usage(place)
    monkeypatch.setattr(data.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with says(data.DemoError, 1):
        data.prepare(place / "data", data.Spec(1000), quiet)
    assert list(place.iterdir()) == []
