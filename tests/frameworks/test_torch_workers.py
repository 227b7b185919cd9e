"""Loaders and datasets in torch's DataLoader: what works in workers, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch.utils.data

import forebay
import support
from frameworks.worker_datasets import BATCH, MadeBefore, MadeInWorker, Samples

# What a loader says of a wrong use here names the option that makes it right.
WAY_OUT = "num_workers=0"
RECORDS = 100

# torch ends its workers where its iterator is collected, and what goes wrong there is its own.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def loader(small_lmdb):
    with forebay.Loader(small_lmdb, BATCH, order="shuffle", seed=2, node_memory="16MiB") as loader:
        yield loader


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_loader_that_a_worker_makes_is_refused_with_the_way_out(small_lmdb, context):
    # Each worker would hand out the whole epoch.
    batches = torch.utils.data.DataLoader(
        MadeInWorker(str(small_lmdb)), batch_size=None, num_workers=2, multiprocessing_context=context
    )
    with pytest.raises(forebay.ForebayError, match=WAY_OUT):
        list(batches)


def test_a_loader_made_before_is_refused_in_a_forked_worker_with_the_way_out(loader):
    batches = torch.utils.data.DataLoader(
        MadeBefore(loader), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    with pytest.raises(forebay.ForebayError, match=WAY_OUT):
        list(batches)


# torch adds a warning to some errors of pickle.
@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_loader_is_not_pickled_for_a_worker_and_the_way_out_is_named(loader, context):
    batches = torch.utils.data.DataLoader(
        MadeBefore(loader), batch_size=None, num_workers=1, multiprocessing_context=context
    )
    with pytest.raises(Exception, match=WAY_OUT):
        list(batches)


def test_the_parent_uses_its_loader_after_a_worker_was_refused(loader):
    batches = torch.utils.data.DataLoader(
        MadeBefore(loader), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(forebay.ForebayError):
        list(batches)
    assert sorted(number for batch in loader for number in batch.indices.tolist()) == list(range(RECORDS))


def test_without_workers_a_wrapped_loader_hands_out_its_epochs_in_order(small_lmdb, small_records, loader):
    with forebay.Loader(
        small_lmdb, BATCH, order="shuffle", seed=2, node_memory="16MiB", name="plain"
    ) as plain:
        expected = [[batch.indices.tolist() for batch in plain] for _ in range(3)]
    batches = torch.utils.data.DataLoader(MadeBefore(loader), batch_size=None, num_workers=0)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            found.append([])
            for batch in batches:
                assert isinstance(batch["data"], torch.Tensor)
                for row, number in zip(batch["data"], batch["indices"], strict=True):
                    assert bytes(row.numpy()) == small_records[number]
                found[-1].append(batch["indices"].tolist())
    assert found == expected


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_samples_of_a_dataset_are_read_by_workers(datum_lmdb, context):
    batches = torch.utils.data.DataLoader(
        Samples(str(datum_lmdb), 64), batch_size=BATCH, num_workers=2, multiprocessing_context=context
    )
    check_datums(batches)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_an_open_dataset_is_a_map_style_dataset_for_workers(datum_lmdb, context):
    dataset = forebay.open(datum_lmdb, schema="caffe-datum")
    batches = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, num_workers=2, multiprocessing_context=context
    )
    check_datums(batches)


def check_datums(batches):
    """Check that these are the images and labels of the dataset in their order."""
    labels = []
    for batch in batches:
        for image, label in zip(batch["image"], batch["label"], strict=True):
            assert np.asarray(image).tobytes() == support.record(int(label), 3 * 8 * 8)
            labels.append(int(label))
    assert labels == list(range(64))
