"""The demo's sources of batches and its model."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.tools.convert import datum
from forebay_lab.demo import data, sources
from forebay_lab.demo.model import Model
from support.demo import SAMPLES


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 300), (3, 64), (4, 125)])
@pytest.mark.full
def test_the_skipping_ranks_together_walk_the_file_in_order_and_wrap(dataset, ranks: int, batch_size: int):
    import lmdb

    with (
        lmdb.open(str(dataset.database), readonly=True, lock=False) as environment,
        environment.begin() as read,
    ):
        labels = [datum.decode(value)[1] for _, value in read.cursor()]
    parts: list[list[list[np.ndarray]]] = []
    for rank in range(ranks):  # One after the other: py-lmdb opens a file once per process.
        reader = sources.PyLmdb(dataset.database, batch_size, rank, ranks)
        parts.append([[found.copy() for _, found in reader.epoch(epoch)] for epoch in range(2)])
        reader.close()
    for epoch in range(2):
        steps = list(zip(*(part[epoch] for part in parts), strict=True))
        assert len(steps) == -(-SAMPLES // (batch_size * ranks))
        found = np.concatenate([one for step in steps for one in step])
        assert found.tolist() == [labels[i % SAMPLES] for i in range(len(found))]


def test_the_gradient_is_the_slope_of_the_loss():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 10, 8)
    model = Model(8, 1, seed=0)
    model.learn(images, labels)
    gradient = model.gradient.copy()
    weights = model._weights
    for number in np.argsort(np.abs(gradient[:-1]))[-8:]:
        before, losses = weights[number], []
        for step in (-1e-2, 1e-2):
            weights[number] = before + step
            model.learn(images, labels)
            losses.append(float(model.gradient[-1]))
        weights[number] = before
        assert (losses[1] - losses[0]) / 2e-2 == pytest.approx(float(gradient[number]), rel=0.05, abs=1e-3)


@pytest.mark.full
def test_the_model_learns_and_equal_batches_give_equal_bits(dataset: data.DemoDataset):
    losses = []
    for _ in range(2):
        model, source = Model(100, 1, seed=0), sources.PyLmdb(dataset.database, 100, 0, 1)
        losses.append([])
        for epoch in range(4):
            for images, labels in source.epoch(epoch):
                model.learn(images, labels)
                losses[-1].append(model.step(model.gradient, 0.1))
        source.close()
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-10:]) < 0.5 * np.mean(losses[0][:10])
