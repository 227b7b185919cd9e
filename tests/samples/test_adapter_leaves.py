"""What the adapters share: the tree of a batch stays, its arrays are converted."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import numpy as np
import pytest

import forebay
from forebay._adapters.leaves import convert
from forebay._adapters.loaders import loader_for
from forebay._iteration import Batch, BatchTuple, Position


class Pair(NamedTuple):
    image: np.ndarray
    names: list[str]


def test_trees_keep_their_types_and_places():
    batch = Batch(
        {"x": np.arange(3), "ragged": [np.arange(2), np.arange(1)], "pair": Pair(np.ones(2), ["a", "b"])}
    )
    batch.indices, batch.position = np.array([4, 5]), Position(1, 2)
    parts = BatchTuple((np.float32(2), forebay.Ragged(np.arange(4), np.array([0, 4])), b"raw"))
    parts.indices, parts.position = batch.indices, batch.position

    converted = convert(batch, lambda array: ("leaf", array.tolist()))
    assert type(converted) is Batch
    assert converted == {"x": ("leaf", [0, 1, 2]), "ragged": [("leaf", [0, 1]), ("leaf", [0])],
                         "pair": Pair(("leaf", [1.0, 1.0]), ["a", "b"])}  # fmt: skip
    assert converted.indices is batch.indices
    assert converted.position == (1, 2)

    tuples = convert(parts, lambda array: array.dtype.name)
    assert type(tuples) is BatchTuple
    assert tuples == ("float32", forebay.Ragged("int64", "int64"), b"raw")
    assert type(tuples[1]) is forebay.Ragged
    assert tuples.position == (1, 2)


def test_a_loader_is_taken_as_it_is_and_takes_no_options(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32))
    with loader_for("forebay.torch.loader", tmp_path / "x.npy", 4, {"order": "sequential"}) as loader:
        assert next(iter(loader))["data"].tolist() == [0, 1, 2, 3]
        assert loader_for("forebay.torch.loader", loader, None, {"seed": None}) is loader
        with pytest.raises(
            forebay.OptionError, match=r"forebay.torch.loader: expected no options .* found seed="
        ):
            loader_for("forebay.torch.loader", loader, None, {"seed": 3})
        with pytest.raises(forebay.OptionError, match="found batch_size="):
            loader_for("forebay.torch.loader", loader, 4, {})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_copies_of_batches_keep_their_places(again):
    for batch in (Batch({"x": np.arange(3)}), BatchTuple((np.arange(3),))):
        batch.indices, batch.position = np.array([4, 5, 6]), Position(1, 2)
        found = again(batch)
        assert type(found) is type(batch)
        assert (found.indices.tolist(), found.position) == ([4, 5, 6], (1, 2))
        assert repr(found) == repr(batch)


def test_a_batch_that_a_library_makes_anew_has_no_place():
    for batch, values in ((Batch({"x": 1}), {"x": 2}), (BatchTuple((1,)), (2,))):
        batch.indices, batch.position = np.array([4]), Position(1, 2)
        made = type(batch)(values)
        assert made == values
        assert made.indices is None
        assert made.position is None
        assert convert(made, lambda array: array).position is None
    assert repr(Batch({"x": 2})) == "Batch({'x': 2}, indices=None, position=None)"
