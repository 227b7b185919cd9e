"""Shuffle quality is reported; one warning says that a training is too long for its groups."""

from __future__ import annotations

import json
import math
import random
import warnings
from dataclasses import asdict

import numpy as np
import pytest

import forebay
from forebay import cli
from forebay.config import GroupSize

# No test run: the loader warns from 10,000 samples on.
SAMPLES = 16384


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Samples of four bytes each."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.npy"
    np.save(path, np.arange(SAMPLES, dtype=np.int32))
    return path


def loader(path, group=None, **options):
    options = {"batch_size": 256, "node_memory": "32MiB", "order": group or "group", **options}
    return forebay.Loader(path, **options)


def through(one, epochs):
    for _ in range(epochs):
        assert sum(len(batch.indices) for batch in one) == SAMPLES


def test_too_many_epochs_are_warned_of_once_with_the_groups_that_would_do(numbers, says):
    with loader(numbers, forebay.Group(samples=4, window=4), expected_epochs=5) as one:
        with says(RuntimeWarning, 5, 6, 4) as told:
            through(one, 1)
        assert len(told) == 1
        # Warnings are errors here: there is no second one.
        through(one, 2)
        quality = one.config.order.shuffle_quality
        assert (quality.groups, quality.proven_epochs, quality.epochs) == (4096, 4, 5)
        assert quality.within_bound is False
        assert quality.suggested_group == GroupSize(samples=6, window=4)


def test_the_groups_that_would_do_do(numbers):
    with loader(numbers, forebay.Group(samples=6, window=4), expected_epochs=5) as one:
        through(one, 5)
        quality = one.config.order.shuffle_quality
        assert (quality.epochs, quality.within_bound) == (5, True)


def test_where_no_number_of_epochs_is_told_the_epoch_that_is_too_many_warns(numbers):
    with loader(numbers, forebay.Group(samples=4, window=4)) as one:
        through(one, 3)
        assert one.config.order.shuffle_quality.within_bound is True
        with pytest.warns(RuntimeWarning, match=r"4 \(Meng"):
            through(one, 1)
        through(one, 1)
        quality = one.config.order.shuffle_quality
        assert (quality.epochs, quality.within_bound) == (5, False)


def test_a_warning_that_is_an_error_leaves_a_loader_that_works(numbers):
    with loader(numbers, forebay.Group(samples=4, window=4), expected_epochs=5) as one:
        with pytest.raises(RuntimeWarning, match=r"5 \(Meng"):
            through(one, 1)
        through(one, 1)


@pytest.mark.parametrize("epochs", [SAMPLES // 256, SAMPLES - 1, SAMPLES, 10**9])
def test_a_dataset_that_is_too_small_for_groups_that_would_do_is_not_warned_of(numbers, epochs):
    with loader(numbers, forebay.Group(samples=4, window=4), expected_epochs=epochs) as one:
        through(one, 1)
        quality = one.config.order.shuffle_quality
        assert (quality.within_bound, quality.suggested_group) == (False, None)


def test_a_test_run_is_not_warned_of_and_config_says_what_would_do(tmp_path):
    path = tmp_path / "few.npy"
    np.save(path, np.arange(4096, dtype=np.int32))
    with loader(path, forebay.Group(samples=4, window=4), expected_epochs=5) as one:
        # Warnings are errors here.
        assert sum(len(batch.indices) for batch in one) == 4096
        assert one.config.order.shuffle_quality.suggested_group == GroupSize(samples=6, window=4)


@pytest.mark.parametrize("order", ["shuffle", "sequential", "contiguous", forebay.Group(samples=1)])
def test_no_bound_is_told_where_none_applies(numbers, order):
    with loader(numbers, order, expected_epochs=10**6) as one:
        through(one, 1)
        quality = one.config.order.shuffle_quality
        bound = ("groups", "proven_epochs", "epochs", "within_bound", "suggested_group")
        assert [getattr(quality, key) for key in bound] == [None] * 5


def test_the_numbers_of_a_loader_are_those_of_the_formulas(numbers):
    dice = random.Random(11)
    for _ in range(40):
        group, window, epochs = dice.randrange(2, 70), dice.randrange(1, 6), dice.randrange(1, 40)
        lanes, batch = dice.choice((1, 2, 4, 8)), dice.choice((8, 16, 64))
        order = forebay.Group(samples=group, window=window, lanes=lanes)
        with loader(numbers, order, batch_size=batch, expected_epochs=epochs) as one:
            quality = one.config.order.shuffle_quality
        groups = math.ceil(SAMPLES / group)
        assert quality.groups == groups
        assert quality.within_bound is (epochs < SAMPLES / groups)
        part = batch / lanes
        pairs = lanes * part * (part - 1) / (batch * (batch - 1)) * (group - 1) / (window * group - 1)
        assert quality.same_group_pairs == pytest.approx(pairs)
        if (better := quality.suggested_group) is not None:
            assert epochs * math.ceil(SAMPLES / better.samples) < SAMPLES
            assert epochs * math.ceil(SAMPLES / (better.samples - 1)) >= SAMPLES


def test_inspect_tells_the_quality_of_the_default_order(capsys, numbers):
    def inspect(*more):
        assert cli.main(["inspect", str(numbers), *map(str, more), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for ranks, batch, epochs in ((1, 32, 5), (4, 16, 63), (2, 64, 64), (3, 5000, 1)):
        found = inspect("--ranks", ranks, "--batch-size", batch, "--epochs", epochs)
        order = found["order"]
        assert (order["ranks"], order["batch_size"]) == (ranks, batch)
        quality = order["shuffle_quality"]
        assert quality["groups"] == SAMPLES / order["group_samples"] == 256
        assert quality["within_bound"] is (epochs < order["group_samples"])
        assert found["warnings"] == []
    with loader(numbers, batch_size=32) as one, warnings.catch_warnings():
        plain = inspect()["order"]
        assert plain["shuffle_quality"] == asdict(one.config.order.shuffle_quality)
        keys = ("group_samples", "group_window", "lanes")
        assert [plain[key] for key in keys] == [getattr(one.config.order, key) for key in keys]


def test_inspect_warns_of_a_default_order_that_is_not_good_for_the_epochs(capsys, tmp_path):
    path = tmp_path / "zeros.npy"
    # Samples of 1 MB, in a file without blocks: groups of 4.
    np.lib.format.open_memmap(path, "w+", np.uint8, (6000, 1_000_000))
    assert cli.main(["inspect", str(path), "--epochs", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["order"]["group_samples"] == 4
    assert found["order"]["shuffle_quality"]["suggested_group"] == {"samples": 21, "window": 4}
    [warning] = found["warnings"]
    assert "order=forebay.Group(samples=21, window=4)" in warning
