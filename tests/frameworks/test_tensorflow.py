"""forebay.tensorflow: datasets of batches and eager tensors, their memory and states."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import time
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import forebay
import support

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="tensorflow-cpu could not be had")

import forebay.tensorflow  # noqa: E402
from forebay.tensorflow import _dataset, _spec  # noqa: E402

SAMPLES = 96
STEPS = 12

# What a loader says where all its buffers are held; it goes on with others.
held = pytest.mark.filterwarnings("ignore:loader .* batch buffers of this rank are still in use")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Images and labels of 96 samples; each pixel of an image is its number."""
    path = tmp_path_factory.mktemp("tensorflow") / "train.npz"
    image = np.repeat(np.arange(SAMPLES, dtype=np.float32), 64).reshape(SAMPLES, 8, 8)
    np.savez(path, image=image, label=np.arange(SAMPLES))
    return path


@pytest.fixture
def options():
    return {"order": "shuffle", "seed": 3, "node_memory": "16MiB"}


@pytest.fixture
def expected(path, options):
    """The labels of the batches of four epochs."""
    with forebay.Loader(path, 8, **options, name="expected") as loader:
        return [[batch["label"].tolist() for batch in loader] for _ in range(4)]


def labels(batches):
    return [batch["label"].numpy().tolist() for batch in batches]


def digest(batch):
    flat = tf.nest.flatten(batch, expand_composites=True)
    values = [leaf.numpy() for leaf in flat]
    parts = [b"|".join(one) if one.dtype == object else one.tobytes() for one in values]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_an_iteration_is_an_epoch_of_known_length_and_shape(path, options, expected):
    dataset = forebay.tensorflow.dataset(path, 8, **options)
    assert dataset.element_spec == {
        "image": tf.TensorSpec((8, 8, 8), tf.float32),
        "label": tf.TensorSpec((8,), tf.int64),
    }
    assert dataset.cardinality().numpy() == STEPS
    for epoch in range(2):
        found = []
        for batch in dataset:
            assert np.array_equal(batch["image"][:, 0, 0], tf.cast(batch["label"], tf.float32))
            found.append(batch["label"].numpy().tolist())
        assert found == expected[epoch]


def test_repeat_map_and_take_work_as_on_any_dataset(path, options, expected):
    dataset = forebay.tensorflow.dataset(path, 8, **options)
    doubled = dataset.map(lambda batch: batch["label"] * 2, num_parallel_calls=2).repeat(2)
    found = [labels.numpy().tolist() for labels in doubled]
    assert found == [[2 * label for label in batch] for epoch in expected[:2] for batch in epoch]
    # An epoch that is broken off counts.
    assert labels(dataset.take(3)) == expected[2][:3]
    assert labels(dataset) == expected[3]


def test_an_endless_dataset_goes_through_the_epochs(path, options, expected):
    dataset = forebay.tensorflow.dataset(path, 8, endless=True, with_position=True, **options)
    assert dataset.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    found = [(batch["label"].numpy().tolist(), tuple(place.numpy())) for batch, place in dataset.take(30)]
    flat = [
        (batch, (epoch, step)) for epoch, steps in enumerate(expected) for step, batch in enumerate(steps)
    ]
    assert found == flat[:30]


@pytest.mark.parametrize(
    "then",
    [lambda dataset: dataset.take(60), lambda dataset: dataset.map(lambda batch: batch)],
    ids=["take", "map"],
)
def test_whatever_follows_tf_data_takes_few_batches_ahead(path, options, then):
    with forebay.Loader(path, 8, **options) as loader:
        ahead = []
        for taken, batch in enumerate(then(forebay.tensorflow.dataset(loader, endless=True)), 1):
            del batch
            # Pauses between batches that are taken at once make a buffer grow that tf.data sizes.
            if taken % 10 == 0:
                time.sleep(0.1)
                epoch, step = loader.state_dict()["epoch"], loader.state_dict()["step"]
                ahead.append(epoch * STEPS + step - taken)
            if taken == 60:
                break
        # Two that are ready, and the one that it makes.
        assert max(ahead) <= 3


@held
@pytest.mark.parametrize("with_sample", [False, True])
def test_batches_that_are_kept_keep_their_bytes(path, options, with_sample):
    sample = (lambda sample: (sample["image"] + 1, sample["label"])) if with_sample else None
    dataset = forebay.tensorflow.dataset(path, 8, transform=sample, **options)
    kept = [(batch, digest(batch)) for _ in range(5) for batch in dataset]
    with forebay.tensorflow.loader(path, 8, transform=sample, **options, name="eager") as loader:
        eager = [(batch, digest(batch)) for _ in range(5) for batch in loader]
    gc.collect()
    assert len({digest for _, digest in kept}) == 5 * STEPS
    assert [digest for _, digest in kept] == [digest for _, digest in eager]
    assert all(digest(batch) == wanted for batch, wanted in kept + eager)


def test_tensors_give_the_batch_buffers_back(path, options):
    with forebay.Loader(path, 8, **options) as loader:
        dataset = forebay.tensorflow.dataset(loader)
        for _ in range(6):
            for batch in dataset:
                del batch
        assert loader.stats()["heap_batches"] == 0
    with forebay.tensorflow.loader(path, 8, **options, name="eager") as eager:
        for _ in range(6):
            for batch in eager:
                del batch
        assert eager.loader.stats()["heap_batches"] == 0


def test_a_constant_that_batch_returns_is_never_written(path, options):
    weights = np.ones(4096, np.float32)
    for name, make in (("a", forebay.tensorflow.dataset), ("b", forebay.tensorflow.loader)):
        found = make(path, 8, batch_transform=lambda batch: weights, name=name, **options)
        step = tf.function(lambda values: values * 2 + 1)
        for values in found:
            assert float(step(values)[0]) == 3
        del values
    assert (weights == 1).all()


class Pair(NamedTuple):
    image: np.ndarray
    label: np.ndarray


def tree(kind):
    """Functions of a sample whose results stand in trees of each kind."""

    def sample(sample):
        image, label = sample["image"], np.int32(sample["label"])
        if kind == "ragged":
            return {"image": image[: int(label) % 8], "label": label}
        return {"tuple": (image, label), "named": Pair(image, label), "array": image,
                "strings": {"image": image, "label": label, "name": f"sample {label}"}}[kind]  # fmt: skip

    return sample


@pytest.mark.parametrize("kind", ["tuple", "named", "array", "strings"])
def test_results_of_samples_keep_their_tree(path, options, kind):
    dataset = forebay.tensorflow.dataset(path, 8, transform=tree(kind), **options)
    with forebay.tensorflow.loader(path, 8, transform=tree(kind), **options, name="eager") as loader:
        for batch, eager in zip(dataset, loader, strict=True):
            tf.nest.assert_same_structure(batch, eager)
            assert digest(batch) == digest(eager)
            if kind == "array":
                assert batch.shape == (8, 8, 8)
                continue
            image, label = (batch["image"], batch["label"]) if kind == "strings" else batch
            assert type(batch) is {"tuple": tuple, "named": Pair, "strings": dict}[kind]
            assert np.array_equal(image[:, 0, 0], tf.cast(label, tf.float32))
            if kind == "strings":
                assert batch["name"].numpy().tolist() == [
                    f"sample {number}".encode() for number in label.numpy()
                ]


@pytest.mark.parametrize("collate", ["ragged", "pad", "list"])
def test_lengths_that_vary_become_ragged_or_padded(path, options, collate):
    dataset = forebay.tensorflow.dataset(path, 8, transform=tree("ragged"), collate=collate, **options)
    with forebay.tensorflow.loader(
        path, 8, transform=tree("ragged"), collate=collate, **options, name="eager"
    ) as loader:
        for batch, eager in zip(dataset, loader, strict=True):
            assert digest(batch) == digest(eager)
            lengths = batch["label"].numpy() % 8
            if collate == "pad":
                assert batch["image"].lengths.numpy()[:, 0].tolist() == lengths.tolist()
                continue
            assert isinstance(batch["image"], tf.RaggedTensor)
            assert batch["image"].row_lengths().numpy().tolist() == lengths.tolist()
            assert batch["image"].shape == (8, None, 8)
            for row, number in zip(batch["image"], batch["label"].numpy(), strict=True):
                assert (row.numpy() == number).all()


def test_raw_records_are_strings_for_decoders(tmp_path, options):
    records = [support.record(number, 1 + number) for number in range(32)]
    path = support.write_lmdb(tmp_path / "raw.lmdb", records)
    dataset = forebay.tensorflow.dataset(path, 8, **options)
    assert dataset.element_spec == {"data": tf.TensorSpec((8,), tf.string)}
    found = [record for batch in dataset for record in batch["data"].numpy().tolist()]
    with forebay.tensorflow.loader(path, 8, **options, name="eager") as loader:
        assert [record for batch in loader for record in batch["data"].numpy().tolist()] == found
    assert sorted(found) == sorted(records)


@pytest.mark.parametrize("samples", [20, 8])
def test_the_size_of_a_batch_is_static_where_all_are_equal(tmp_path, options, samples):
    np.save(tmp_path / "x.npy", np.arange(samples, dtype=">i4"))
    dataset = forebay.tensorflow.dataset(tmp_path / "x.npy", 8, **options)
    assert dataset.element_spec == {"data": tf.TensorSpec(({20: None, 8: 8}[samples],), tf.int32)}
    found = [batch["data"].numpy().tolist() for batch in dataset]
    assert [len(batch) for batch in found] == {20: [8, 8, 4], 8: [8]}[samples]
    assert sorted(number for batch in found for number in batch) == list(range(samples))


def test_an_empty_part_has_the_fields_of_the_others():
    spec = {
        "a": tf.RaggedTensorSpec((None, None, 3), tf.int16, 1, tf.int64),
        "b": (tf.TensorSpec((None,), tf.string), tf.TensorSpec((None, 2), tf.float32)),
    }
    found = _spec.packed(spec, iter([tf.constant(one) for one in _spec.empty(spec)]))
    assert found["a"].shape[0] == 0
    assert found["b"][1].shape == (0, 2)


def test_the_loader_is_closed_when_its_dataset_is_collected(path, options, monkeypatch):
    loaders = []

    def loader_for(*arguments):
        loader = real(*arguments)
        loaders.append(weakref.ref(loader))
        return loader

    real = _dataset.loader_for
    monkeypatch.setattr(_dataset, "loader_for", loader_for)
    # An iterator alone keeps it.
    batches = iter(forebay.tensorflow.dataset(path, 8, **options).map(lambda batch: batch["label"]))
    gc.collect()
    assert sum(1 for _ in batches) == STEPS
    del batches
    gc.collect()
    assert loaders[0]() is None


def test_any_position_resumes_exactly_though_tf_data_reads_ahead(path, options):
    def sample(sample, rng):
        return {"image": sample["image"] + rng.random(dtype=np.float32), "label": sample["label"]}

    chosen = np.random.default_rng(7).integers(1, 36, 50)
    with forebay.Loader(path, 8, transform=sample, workers=2, prefetch=3, **options) as loader:
        states, digests = [], []
        for _ in range(3):
            for batch, place in forebay.tensorflow.dataset(loader, with_position=True):
                states.append(loader.state_at(tuple(place.numpy().tolist())))
                digests.append(digest(batch))
        for stop in chosen:
            loader.load_state_dict(states[stop - 1])
            found = [digest(batch) for batch in forebay.tensorflow.dataset(loader)]
            assert found == digests[stop : stop - stop % -STEPS]
            assert loader.state_dict()["step"] == 0
    with forebay.tensorflow.loader(path, 8, transform=sample, workers=2, **options, name="eager") as eager:
        for stop in chosen:
            eager.load_state_dict(states[stop - 1])
            assert eager.state_dict() == states[stop - 1]
            assert [digest(batch) for batch in eager] == digests[stop : stop - stop % -STEPS]


def test_the_rest_of_an_epoch_has_its_own_cardinality(path, options, expected):
    with forebay.Loader(path, 8, **options) as loader:
        loader.load_state_dict(loader.state_at((1, 4)))
        dataset = forebay.tensorflow.dataset(loader)
        assert dataset.cardinality().numpy() == 7
        assert labels(dataset) == expected[1][5:]
        with pytest.raises(
            tf.errors.OpError, match="this dataset is the rest of epoch 1, and epoch 2 begins"
        ):
            list(dataset)
        whole = forebay.tensorflow.dataset(loader)
        loader.load_state_dict(loader.state_at((1, 4)))
        with pytest.raises(tf.errors.OpError, match="was moved to epoch 1, step 5 after"):
            list(whole)
        loader.load_state_dict(loader.state_at((1, 4)))
        endless = forebay.tensorflow.dataset(loader, endless=True)
        assert labels(endless.take(10)) == (expected[1][5:] + expected[2])[:10]


def test_what_batches_look_like_is_found_without_taking_one(path, options, expected):
    calls = []

    def sample(sample):
        calls.append(int(sample["label"]))
        return sample

    with forebay.Loader(path, 8, transform=sample, **options) as loader:
        dataset = forebay.tensorflow.dataset(loader)
        assert calls == [0]
        assert loader.state_dict()["step"] == 0
        assert labels(dataset) == expected[0]


def crop(sample):
    return sample["image"][: 1 + int(sample["label"]) % 2]


def widths(batch):
    return batch["image"][:, : 1 + int(batch["label"][0]) % 8]


def test_shapes_that_vary_name_element_spec(path, options):
    dataset = forebay.tensorflow.dataset(path, 8, batch_transform=widths, **options)
    with pytest.raises(
        tf.errors.OpError, match=r"(?s)the batch: expected shape \(8, 1, 8\), found .*element_spec="
    ):
        list(dataset)
    spec = tf.TensorSpec((8, None, 8), tf.float32)
    dataset = forebay.tensorflow.dataset(path, 8, batch_transform=widths, element_spec=spec, **options)
    assert dataset.element_spec == spec
    assert len({batch.shape[1] for batch in dataset}) > 1


@pytest.mark.parametrize(
    "spec", [tf.int32, [np.float32], tf.TensorSpec(None, tf.int32), {"a": tf.SparseTensorSpec((3,))}]
)
def test_an_element_spec_that_is_none_is_refused(path, options, spec):
    with pytest.raises(forebay.OptionError, match="element_spec="):
        forebay.tensorflow.dataset(path, 8, element_spec=spec, **options)


def test_an_element_spec_with_other_fields_names_them(path, options):
    dataset = forebay.tensorflow.dataset(
        path, 8, element_spec={"label": tf.TensorSpec((8,), tf.int64)}, **options
    )
    with pytest.raises(
        tf.errors.OpError, match="expected a dictionary with 'label', found a dictionary with 'image'"
    ):
        list(dataset)


@pytest.mark.parametrize("value", [np.datetime64("2020-01-01"), {1, 2}, None])
def test_what_no_tensor_can_hold_names_its_field(path, options, value):
    def batch(batch):
        return {"a": (batch["label"], np.array([value]))}

    with pytest.raises(forebay.OptionError, match=r"field \['a'\]\[1\]"):
        forebay.tensorflow.dataset(path, 8, batch_transform=batch, **options)
    with (
        forebay.tensorflow.loader(path, 8, batch_transform=batch, **options, name="eager") as loader,
        pytest.raises(forebay.OptionError, match=r"field \['a'\]\[1\]"),
    ):
        next(iter(loader))


def test_a_dataset_is_not_made_inside_a_function(path, options):
    @tf.function
    def traced():
        return forebay.tensorflow.dataset(path, 8, **options).cardinality()

    # TensorFlow makes a type of its own of the exception.
    with pytest.raises(Exception, match=r"OptionError: .* outside of a tf\.function"):
        traced()


def test_an_error_of_a_sample_reaches_the_loop_with_its_words(path, options):
    def sample(sample):
        if sample["label"] == 50:
            raise ValueError("broken image")
        return sample["label"]

    dataset = forebay.tensorflow.dataset(path, 8, transform=sample, **options)
    with pytest.raises(tf.errors.OpError, match="broken image"):
        list(dataset)


def test_a_first_sample_that_is_bad_is_skipped_as_in_batches(path, options):
    def sample(sample):
        if sample["label"] < 2:
            raise ValueError("broken image")
        return sample["label"]

    with pytest.raises(ValueError, match="broken image"):
        forebay.tensorflow.dataset(path, 8, transform=sample, **options)
    dataset = forebay.tensorflow.dataset(path, 8, transform=sample, bad_samples="skip", **options)
    assert dataset.element_spec == tf.TensorSpec((8,), tf.int64)


def child(loader, queue):
    try:
        next(iter(loader))
        queue.put("delivered")
    except forebay.ForebayError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_loader_is_not_used_after_a_fork(path, options):
    fork = multiprocessing.get_context("fork")
    with forebay.tensorflow.loader(path, 8, **options) as loader:
        queue = fork.SimpleQueue()
        process = fork.Process(target=child, args=(loader, queue))
        process.start()
        process.join(support.DEADLINE_S)
        assert "was forked and cannot be used in it" in queue.get()
