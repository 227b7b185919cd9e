"""Files that are in the page cache from a later epoch on: ranks then copy from there, unplanned."""

from __future__ import annotations

import time
from itertools import chain

import numpy as np
import pytest

import forebay
import support
from support.ranks import warm

SAMPLES, COLUMNS = 4001, 300
EPOCHS = 7
OPTIONS = {"node_memory": "16MiB", "seed": 3, "last_batch": "partial", "expected_epochs": EPOCHS}


@pytest.fixture
def cold(tmp_path):
    """An npy file of 10 MB with its index, of which no page is in the page cache."""
    path = tmp_path / "x.npy"
    np.save(path, np.repeat(np.arange(SAMPLES), COLUMNS).reshape(SAMPLES, COLUMNS))
    forebay.open(path)
    support.drop_from_page_cache(path)
    return path


def alone(path, order, batch):
    """By epoch, the ids of each global batch, as one rank that reads all of it gets them."""
    options = OPTIONS | {"order": order, "batch_size": batch, "strategy": "pread"}
    if order == "given":
        options["order"] = lambda epoch: np.random.default_rng(epoch).permutation(SAMPLES)
    with forebay.Loader(path, world="single", **options) as loader:
        return [[batch.indices.tolist() for batch in loader] for _ in range(EPOCHS)]


@pytest.mark.parametrize(
    ("order", "ranks"), [("group", 1), *((order, 3) for order in ("sequential", "shuffle", "group", "given"))]
)
def test_planning_ends_once_an_epoch_begins_with_all_in_the_page_cache(pool, cold, order, ranks):
    options = OPTIONS | {"order": order, "batch_size": 10}
    found = pool.run(ranks, warm.epochs, path=str(cold), options=options, last=EPOCHS)
    since = [one for _, one in found]
    assert since[0][-1] > 0, "the first epoch is planned"
    assert {one[-1] for one in since} == {since[0][-1]}
    expected = alone(cold, order, 10 * ranks)
    for epoch in range(EPOCHS):
        steps = zip(*(delivered[epoch] for delivered, _ in found), strict=True)
        together = [[*chain(*parts)] for parts in steps]
        if order == "group":
            # Its batches depend on the number of ranks.
            assert sorted(chain(*together)) == list(range(SAMPLES))
        else:
            assert together == expected[epoch], f"epoch {epoch}"
    if order == "group" and ranks == 1:
        assert found[0][0] == expected


def test_a_rank_that_leaves_an_epoch_and_jumps_gets_what_it_would_have(cold):
    options = OPTIONS | {"order": "group", "batch_size": 10}
    with forebay.Loader(cold, world="single", strategy="pread", **options) as plain:
        expected = [[batch.indices.tolist() for batch in plain] for _ in range(EPOCHS)]
    support.drop_from_page_cache(cold)
    with forebay.Loader(cold, world="single", name="warm", **options) as loader:
        for epoch in (0, 1, 2):
            assert [batch.indices.tolist() for batch in loader] == expected[epoch]
            cold.read_bytes()
            time.sleep(warm.BELIEVED_S)
        assert loader.config.now.mapped_from_epoch > 0
        for step, batch in enumerate(loader):
            assert batch.indices.tolist() == expected[3][step]
            state = loader.state_at(batch.position)
            if step == 7:
                break
        del batch  # its buffer is one of two
        loader.set_epoch(5)
        assert [batch.indices.tolist() for batch in loader] == expected[5]
        loader.load_state_dict(state)
        assert [batch.indices.tolist() for batch in loader] == expected[3][8:]
