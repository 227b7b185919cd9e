"""A node reads and decodes each coded chunk once; default groups consist of whole chunks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import forebay
import forebay_lab
from support.ranks import nodes

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

SAMPLES, ROWS = 4000, 50


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    """An HDF5 file of 80 gzip chunks of 50 samples of 2 KiB, and its values."""
    values = np.random.default_rng(3).integers(0, 40, (SAMPLES, 512), dtype="<i4")
    path = tmp_path_factory.mktemp("zipped") / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(ROWS, 512), compression="gzip", shuffle=True)
    np.save(path.with_suffix(".npy"), values)
    return path


def deliver(path, options, world, pipe):
    """Compare one epoch with the values and return the loader's statistics and choices."""
    values = np.load(path.with_suffix(".npy"), mmap_mode="r")
    world = forebay.World(**nodes.with_comm(dict(world)))
    with forebay.Loader(path, world=world, expected_epochs=1, **options) as loader:
        ids = []
        for batch in loader:
            np.testing.assert_array_equal(batch["x"], values[batch.indices])
            ids += batch.indices.tolist()
        return {"ids": ids, "stats": loader.stats(), "config": loader.config}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("strategy", ["forebay", "async", "async-db"])
def test_a_chunk_is_read_once_by_the_node(pool, zipped, ranks, strategy):
    way = forebay_lab.strategy(strategy)
    options = {"batch_size": 20, "last_batch": "partial", "strategy": way, "order": "group"}
    found = pool.run(ranks, deliver, path=zipped, options=options)
    assert sorted(sample for rank in found for sample in rank["ids"]) == list(range(SAMPLES))
    assert found[0]["config"].order.group_samples % ROWS == 0
    # What a rank sees of the node may lack what was read for those that are behind it.
    node = max((rank["stats"]["node"] for rank in found), key=lambda node: node["read_bytes"])
    assert node["decode_seconds"] > 0
    if strategy == "forebay":
        # A lane's end may cut a chunk in two, and so may a window's. The others read through gaps
        # as well.
        stored = zipped.stat().st_size
        assert stored * 0.9 < node["read_bytes"] + node["unstaged_bytes"] < stored * 1.6


def test_what_the_budget_has_no_room_for_is_decoded_by_whoever_needs_it(pool, zipped):
    options = {"batch_size": 20, "last_batch": "partial", "order": "shuffle", "node_memory": "2MiB"}
    (found,) = pool.run(1, deliver, path=zipped, options=options)
    assert sorted(found["ids"]) == list(range(SAMPLES))


def test_a_damaged_chunk_is_an_error_that_names_it_and_can_be_skipped(pool, zipped, tmp_path):
    path = tmp_path / "damaged.h5"
    data = bytearray(zipped.read_bytes())
    with h5py.File(zipped) as file:
        chunk = file["x"].id.get_chunk_info(7)
    data[chunk.byte_offset + 40 : chunk.byte_offset + 60] = bytes(20)
    path.write_bytes(data)
    with (
        forebay.Loader(path, batch_size=20, order="sequential", world="single") as loader,
        pytest.raises(forebay.FormatError, match=rf"damaged\.h5: .*\b{chunk.byte_offset}\b"),
    ):
        for _ in loader:
            pass
    values = np.load(zipped.with_suffix(".npy"))
    with (
        warnings.catch_warnings(),
        forebay.Loader(
            path, batch_size=20, order="sequential", bad_samples="skip", expected_epochs=1, world="single"
        ) as loader,
    ):
        warnings.simplefilter("ignore")
        ids = []
        for batch in loader:
            np.testing.assert_array_equal(batch["x"], values[batch.indices])
            ids += batch.indices.tolist()
        assert ids[350:400] == [349] * ROWS
        assert len(loader.bad_samples()) == ROWS
