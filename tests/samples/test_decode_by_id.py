"""``decode=`` of samples that are read by id: they are those of `dataset[i]` and of the loader."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.samples.test_decode import ALL, SAMPLES, SIZE, members, write_tar

import forebay
import support
from support import photos


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A tar file of images with labels, texts and JSON, and a field that nothing decodes."""
    samples = [[*members(number), ("bin", bytes(range(number)))] for number in range(SAMPLES)]
    return write_tar(tmp_path_factory.mktemp("reads") / "family.tar", samples)


def of_records(directory):
    """Images that are the whole record."""
    files = [photos.encoded(photos.photo(number)) for number in range(12)]
    path = support.write_lmdb(directory / "images.lmdb", files)
    return forebay.open(path, schema="raw", decode={"data": forebay.image(SIZE, resize="random-crop")})


def of_texts(directory):
    """Texts that are the whole record."""
    path = support.write_lmdb(directory / "texts.lmdb", [b"text %d" % number for number in range(12)])
    return forebay.open(path, schema="raw", decode={"data": "text"})


def of_examples(directory):
    """Features of `tf.train.Example`, which a schema decodes first."""
    import tfrecord

    path = directory / "images.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for number in range(12):
        encoded = photos.encoded(photos.photo(number))
        words = b"word" * number
        features = {"image": (encoded, "byte"), "label": (number, "int"), "words": (words, "byte")}
        writer.write(features)
    writer.close()
    return forebay.open(path, decode={"image": forebay.image(SIZE, flip=True), "words": "text"})


DATASETS = {"records": of_records, "texts": of_texts, "examples": of_examples}


def assert_alike(found, wanted):
    """Compare two values of a field."""
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.flags.writeable
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


def test_a_batch_is_that_of_a_loader_in_the_first_epoch_of_seed_0(family):
    dataset = forebay.open(family, decode=ALL)
    with forebay.Loader(dataset, 6, order="shuffle", last_batch="partial") as loader:
        for delivered in loader:
            read = dataset.read(delivered.indices)
            assert read.keys() == delivered.keys()
            assert read.indices.tolist() == delivered.indices.tolist()
            for name, values in read.items():
                assert len(values) == len(delivered[name])
                assert type(values) is type(delivered[name])
                for found, wanted in zip(values, delivered[name], strict=True):
                    assert_alike(found, wanted)


@pytest.mark.parametrize("kind", ["family", *DATASETS])
@pytest.mark.parametrize("seed", range(3))
def test_any_ids_are_the_samples_that_stand_there(family, tmp_path, kind, seed):
    dataset = forebay.open(family, decode=ALL) if kind == "family" else DATASETS[kind](tmp_path)
    draw = random.Random(seed)
    ids = [draw.randrange(-len(dataset), len(dataset)) for _ in range(2 * len(dataset))]
    alone = [dataset[number] for number in ids]
    for found, wanted in zip(dataset.__getitems__(ids), alone, strict=True):
        if isinstance(wanted, dict):
            assert list(found) == list(wanted)
            for name, value in wanted.items():
                assert_alike(found[name], value)
        else:
            assert_alike(found, wanted)
    for threads in (None, 1, 3):
        batch = dataset.read(ids, threads=threads)
        assert list(batch) == list(dataset.fields)
        for name, (dtype, shape) in dataset.fields.items():
            if dtype != "object" and shape is not None:
                assert (batch[name].dtype, batch[name].shape) == (np.dtype(dtype), (len(ids), *shape))
                assert batch[name].flags.owndata
            for found, sample in zip(batch[name], alone, strict=True):
                np.testing.assert_array_equal(found, sample[name])


def test_fields_of_varying_length_can_come_ragged(family):
    dataset = forebay.open(family, decode=ALL)
    batch = dataset.read([3, 0, 3, -1], ragged=True)
    values, offsets = batch["bin"]
    assert offsets.tolist() == [0, 3, 3, 6, 6 + SAMPLES - 1]
    assert values.tobytes() == b"".join(bytes(range(length)) for length in (3, 0, 3, SAMPLES - 1))
    # Texts and what JSON says are objects, one per sample.
    assert batch["txt"] == [dataset[number]["txt"] for number in (3, 0, 3, -1)]
    assert batch["json"] == [dataset[number]["json"] for number in (3, 0, 3, -1)]


def test_no_ids_are_a_batch_without_samples(family):
    batch = forebay.open(family, decode=ALL).read([])
    assert batch["jpg"].shape == (0, SIZE, SIZE, 3)
    assert batch["cls"].shape == (0,)
    assert batch["txt"] == batch["json"] == batch["bin"] == []


def test_samples_of_a_repeated_id_are_objects_of_their_own(family):
    dataset = forebay.open(family, decode=ALL)
    first, second = dataset.__getitems__([3, 3])
    first["jpg"][:] = 0
    first["json"]["list"].clear()
    assert_alike(second["jpg"], dataset[3]["jpg"])
    assert second["json"] == dataset[3]["json"]
    batch = dataset.read([3, 3])
    batch["jpg"][0] = 0
    batch["json"][0]["list"].clear()
    assert_alike(batch["jpg"][1], dataset[3]["jpg"])
    assert batch["json"][1] == dataset[3]["json"]


def test_a_slice_and_a_selection_are_decoded(family):
    dataset = forebay.open(family, decode=ALL)
    assert [one["txt"] for one in dataset[2:4]] == [dataset[2]["txt"], dataset[3]["txt"]]
    part = dataset.select([5, 3])
    assert_alike(part.read([1])["jpg"][0], part[1]["jpg"])
    assert part.read([1])["cls"].tolist() == [dataset[3]["cls"]]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_field_that_cannot_be_decoded_is_the_error_of_its_sample(tmp_path, threads):
    jpeg = dict(members(0))["jpg"]
    samples = [[("cls", b"1"), ("jpg", jpeg)] for _ in range(8)]
    samples[5] = [("cls", b"1"), ("jpg", jpeg[:300])]
    dataset = forebay.open(write_tar(tmp_path / "bad.tar", samples), decode={"jpg": forebay.image(SIZE)})
    with pytest.raises(forebay.FormatError, match=r'sample 5: field "jpg"') as alone:
        dataset[5]
    for read in (lambda ids: dataset.read(ids, threads=threads), dataset.__getitems__):
        with pytest.raises(forebay.FormatError) as together:
            read([7, 5, 2])
        assert str(together.value) == str(alone.value)
        assert len(read([7, 2])) > 0
