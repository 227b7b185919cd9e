"""Collate: results of samples become a batch, or an error that names what does not fit."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest

import forebay
from forebay._samples.collate import as_array, collate


class Pair(NamedTuple):
    left: object
    right: object


def tree(choose, depth=0):
    """Return a random tree of functions that make a leaf for a sample."""
    kind = (
        choose.choice(["dict", "tuple", "named"] if depth < 3 else [None]) if choose.random() < 0.6 else None
    )
    if kind == "dict":
        return {choose.choice("abcdefg"): tree(choose, depth + 1) for _ in range(choose.randrange(1, 4))}
    if kind == "tuple":
        return tuple(tree(choose, depth + 1) for _ in range(choose.randrange(3)))
    if kind == "named":
        return Pair(tree(choose, depth + 1), tree(choose, depth + 1))
    dtype = choose.choice(["u1", "<i4", ">f4", "f8", "?", "S3", "M8[s]", [("a", "i4"), ("b", "f2")]])
    shape = tuple(choose.randrange(3) for _ in range(choose.randrange(3)))
    return lambda rng: (
        rng.integers(0, 100, (*shape, np.dtype(dtype).itemsize), "u1").view(dtype).reshape(shape)
    )


def grown(shape, rng):
    if isinstance(shape, dict):
        return {key: grown(part, rng) for key, part in shape.items()}
    if isinstance(shape, Pair):
        return Pair(*(grown(part, rng) for part in shape))
    if isinstance(shape, tuple):
        return tuple(grown(part, rng) for part in shape)
    return shape(rng)


def leaves(value, path=()):
    """Return the leaves of a tree by path, and the kinds of its nodes."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, tuple):
        parts = enumerate(value)
    else:
        return {path: value}
    found = {(*path, type(value).__name__): None}
    for key, part in parts:
        found |= leaves(part, (*path, key))
    return found


@pytest.mark.parametrize("how", ["stack", "pad", "list", "ragged"])
def test_a_batch_has_the_tree_of_its_results_and_their_values(how):
    choose, rng = random.Random(how), np.random.default_rng(1)
    for _ in range(150):
        shape = tree(choose)
        results = [grown(shape, rng) for _ in range(choose.randrange(1, 5))]
        batch = leaves(uncollated(collate(how, results, range(len(results))), how))
        alone = [leaves(one) for one in results]
        assert batch.keys() == alone[0].keys()
        for path, values in batch.items():
            if values is None:
                continue
            expected = [one[path] for one in alone]
            assert len(values) == len(expected)
            for value, other in zip(values, expected, strict=True):
                assert (value.dtype, value.shape, value.tobytes()) == (
                    other.dtype,
                    other.shape,
                    other.tobytes(),
                )


def uncollated(value, how):
    """Turn each leaf into the list of its values."""
    if isinstance(value, dict):
        return {key: uncollated(part, how) for key, part in value.items()}
    if isinstance(value, forebay.Padded):
        lengths = value.lengths if value.lengths.ndim == 2 else value.lengths[:, None]
        return [row[tuple(map(slice, shape))] for row, shape in zip(value.values, lengths, strict=True)]
    if isinstance(value, forebay.Ragged):
        return [value.values[start:end] for start, end in itertools.pairwise(value.offsets)]
    if isinstance(value, Pair):
        return Pair(*(uncollated(part, how) for part in value))
    if isinstance(value, tuple):
        return tuple(uncollated(part, how) for part in value)
    return value if isinstance(value, list) else [value[at, ...] for at in range(len(value))]


def test_arrays_of_different_lengths_are_padded_ragged_or_lists():
    arrays = [np.arange(length, dtype="i2") for length in (2, 0, 5)]
    padded = collate("pad", arrays, range(3))
    assert padded.values.tolist() == [[0, 1, 0, 0, 0], [0] * 5, [0, 1, 2, 3, 4]]
    assert (padded.values.dtype, padded.lengths.tolist()) == (np.int16, [2, 0, 5])
    ragged = collate("ragged", arrays, range(3))
    assert ragged.values.tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert (ragged.values.dtype, ragged.offsets.tolist()) == (np.int16, [0, 2, 2, 7])
    assert collate("list", arrays, range(3)) == arrays
    images = [np.ones((2, 3)), np.ones((4, 1))]
    padded = collate("pad", images, range(2))
    assert (padded.values.shape, padded.values.sum()) == ((2, 4, 3), 10)
    assert padded.lengths.tolist() == [[2, 3], [4, 1]]
    assert collate("pad", [1, 2], range(2)).tolist() == [1, 2]
    assert collate("stack", [True, False], range(2)).dtype == bool
    assert collate("stack", [{"a": "x", "b": b"y"}] * 2, range(2)) == {"a": ["x", "x"], "b": [b"y", b"y"]}


@pytest.mark.parametrize(
    ("how", "results"),
    [
        ("stack", [np.zeros(2), np.zeros(3)]),
        ("stack", [{"x": {"y": np.zeros(2)}}, {"x": {"y": np.zeros(2, "f4")}}]),
        ("stack", [(1, 2), (1, 2.5)]),
        ("stack", [(1, 2), (1,)]),
        ("stack", [(1, 2), [1, 2]]),
        ("stack", [{"a": 1}, {"b": 1}]),
        ("stack", [{"a": 1}, 1]),
        ("stack", [1, {"a": 1}]),
        ("stack", [Pair(1, 2), (1, 2)]),
        ("stack", [None, None]),
        ("stack", [None, 1]),
        ("stack", [[1, 2], [1, 2]]),
        ("stack", ["a", 1]),
        ("stack", [1, "a"]),
        ("stack", [np.ma.masked_array([1]), np.ma.masked_array([1])]),
        ("stack", [np.array([{}], object)] * 2),
        ("stack", [2**70, 2**70]),
        ("pad", [np.zeros(2), np.zeros((2, 2))]),
        ("pad", [np.zeros(2), np.zeros(2, int)]),
        ("ragged", [np.zeros((2, 2)), np.zeros((2, 3))]),
        ("list", [{"a": 1}, {"b": 1}]),
    ],
)
def test_results_that_do_not_go_together_are_an_error_that_names_the_sample(how, results, says):
    with says(forebay.OptionError, f'collate="{how}"', "sample"):
        collate(how, results, [5, 7])


@pytest.mark.parametrize("how", ["stack", "pad", "ragged"])
@pytest.mark.parametrize("dtype", ["u1", "f4", ">f8", "?", "M8[s]"])
def test_collated_arrays_begin_where_frameworks_share_memory(how, dtype):
    rng = np.random.default_rng(1)
    results = [rng.integers(0, 2, (2, 5), "i4").astype(dtype) for _ in range(3)]
    for _ in range(20):
        found = collate(how, results, [0, 1, 2])
        values = found if how == "stack" else found.values
        assert values.ctypes.data % 64 == 0
        assert values.flags.c_contiguous
        assert values.dtype == dtype
        assert np.array_equal(values.reshape(3, 2, 5), np.stack(results))


# --- for each field ---


def test_a_mapping_says_it_for_each_field():
    results = [
        {
            "image": np.full((2, 2), at),
            "boxes": np.full((at + 1, 4), at),
            "name": object(),
            "deep": ([at], at),
        }
        for at in range(3)
    ]
    how = {"boxes": "ragged", "name": "list", "deep": {0: "list"}}
    batch = collate(how, results, range(3))
    assert batch["image"].shape == (3, 2, 2)
    assert batch["boxes"].offsets.tolist() == [0, 1, 3, 6]
    assert batch["name"] == [one["name"] for one in results]
    assert (batch["deep"][0], batch["deep"][1].tolist()) == ([[0], [1], [2]], [0, 1, 2])
    others = collate({"image": "stack", ...: "list"}, results, range(3))
    assert isinstance(others["image"], np.ndarray)
    assert [len(one) for one in others["boxes"]] == [1, 2, 3]


def test_parts_of_tuples_are_named_by_position_and_those_of_named_ones_by_name_too():
    plain = [(np.zeros(at + 1), at) for at in range(3)]
    assert collate({0: "ragged"}, plain, range(3))[0].offsets.tolist() == [0, 1, 3, 6]
    named = [Pair(*one) for one in plain]
    for how in ({"left": "pad"}, {0: "pad"}, {0: "pad", "right": "list"}, {...: "list", "left": "pad"}):
        batch = collate(how, named, range(3))
        assert type(batch) is Pair
        assert batch.left.lengths.tolist() == [1, 2, 3]
        assert isinstance(batch.right, list if len(how) == 2 else np.ndarray)


@pytest.mark.parametrize(
    ("how", "results"),
    [
        ({"x": "stack", "z": "list"}, [{"x": 1, "y": 2}] * 2),
        ({2: "stack"}, [(1, 2)] * 2),
        ({"left": "stack", 0: "list"}, [Pair(1, 2)] * 2),
        ({"middle": "stack"}, [Pair(1, 2)] * 2),
        ({"x": "stack"}, [1, 2]),
        ({"x": {"y": "list"}}, [{"x": 1}] * 2),
        ({"x": "stack"}, [{"x": 1}, {"y": 1}]),
    ],
)
def test_fields_that_the_results_do_not_have_are_an_error(how, results, says):
    with says(forebay.OptionError):
        collate(how, results, [5, 7])


@pytest.mark.parametrize("how", [{}, {"x": "zip"}, {"x": len}, {"x": {"y": 3}}, "x=zip", {"x": {}}])
def test_a_wrong_mapping_is_told_when_the_loader_is_made(make, how, says):
    with says(forebay.OptionError):
        make(transform=len, collate=how)


def test_a_mapping_may_stand_in_a_configuration(make, monkeypatch):
    monkeypatch.setenv("FOREBAY_COLLATE", "0=ragged, 1=list")
    loader = make(order="sequential", batch_size=3, transform=lambda sample: (sample["data"], "name"))
    data, names = next(iter(loader))
    assert data.offsets.tolist() == [0, 300, 600, 900]
    assert names == ["name"] * 3
    assert loader.config.per_sample.collate == "0=ragged, 1=list"


# --- tensors ---


class Tensor:
    """A tensor as those of torch are, as far as collate sees it."""

    def __init__(self, values, fails=None):
        self.values, self.fails = values, fails

    def __array__(self, dtype=None, copy=None):
        if self.fails:
            raise self.fails
        assert copy is not True
        return self.values

    def detach(self):
        return self


def test_tensors_are_leaves_and_are_not_copied_before_they_are_collated(monkeypatch):
    results = [{"x": Tensor(np.full(at + 1, at)), "y": Tensor(np.array(at))} for at in range(3)]
    batch = collate("pad", results, range(3))
    assert batch["x"].values.tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2]]
    assert batch["y"].tolist() == [0, 1, 2]
    assert np.shares_memory(as_array(results[2]["x"]), results[2]["x"].values)
    assert collate("list", results, range(3))["x"] == [one["x"] for one in results]


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."),
        TypeError("can't convert cuda:0 device type tensor to numpy.\nUse Tensor.cpu() to copy it first."),
    ],
)
def test_a_tensor_whose_values_numpy_cannot_have_is_an_error(failure, says):
    with says(forebay.OptionError):
        collate("stack", [{"x": Tensor(np.zeros(2))}, {"x": Tensor(np.zeros(2), failure)}], [5, 7])
