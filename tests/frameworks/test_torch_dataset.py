"""forebay.torch.dataset in (Stateful)DataLoader, and forebay.torch.node: exact states."""

from __future__ import annotations

import json
import random

import pytest
import torch.utils.data
import torchdata.nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay
import forebay.torch
from frameworks.torch_support import (
    BATCH,
    STEPS,
    copying,
    epochs_of,
    ids_of,
    plain_loader,
    prepare,
    write_samples,
)

EPOCHS = 3
STATES = 50
# From each state, so many batches; more than an epoch, so that they go over its end.
FOLLOWING = STEPS + 2

# torchdata 0.11 calls a function that later versions of torch deprecate.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture
def samples(tmp_path):
    return write_samples(tmp_path / "samples.npz")


@pytest.fixture
def dataset(samples):
    with forebay.torch.dataset(plain_loader(samples, name="torch")) as dataset:
        yield dataset


def batches_of(dataset, kind=torch.utils.data.DataLoader, **options):
    return kind(dataset, **{"batch_size": None, "num_workers": 0, **options})


# --- DataLoader ---


@pytest.mark.filterwarnings("error")
def test_a_dataloader_delivers_the_epochs_of_the_loader(samples, dataset):
    batches = batches_of(dataset)
    assert len(batches) == len(dataset) == STEPS
    with plain_loader(samples) as plain:
        expected = epochs_of(plain, EPOCHS)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(batches):
            assert isinstance(batch["image"], torch.Tensor)
            assert batch["image"][:, 0, 0].tolist() == expected[epoch][step]
            assert ids_of(batch) == expected[epoch][step]


def test_set_epoch_numbers_the_epochs(samples, dataset):
    with plain_loader(samples) as plain:
        expected = epochs_of(plain, EPOCHS)
    for epoch in (2, 2, 0):
        dataset.set_epoch(epoch)
        assert epochs_of(batches_of(dataset), 1) == [expected[epoch]]


def test_a_dataset_is_made_of_what_a_loader_takes(samples):
    with (
        forebay.torch.dataset(samples, BATCH, order="sequential", device="meta") as made,
        forebay.torch.loader(samples, BATCH, name="other") as loader,
    ):
        assert next(iter(batches_of(made)))["image"].is_meta
        assert forebay.torch.dataset(loader).loader is loader
        with pytest.raises(forebay.OptionError, match=r"forebay.torch.dataset: expected no options"):
            forebay.torch.dataset(loader, seed=1)


# The default of a DataLoader is a batch size of 1.
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 2, "collate_fn": list}], ids=str)
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, StatefulDataLoader])
def test_a_batch_size_of_the_dataloader_is_refused_with_the_way_out(dataset, kind, options):
    with pytest.raises(forebay.OptionError, match=r"DataLoader\(dataset, batch_size=None\)"):
        next(iter(kind(dataset, **options)))
    assert len(list(batches_of(dataset, kind, collate_fn=ids_of))) == STEPS


# torch ends its workers where its iterator is collected, and adds a warning to errors of pickle.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_are_refused_with_the_way_out(dataset, context):
    with pytest.raises(Exception, match="num_workers=0"):
        list(batches_of(dataset, num_workers=1, multiprocessing_context=context))
    assert len(list(batches_of(dataset, collate_fn=ids_of))) == STEPS


# --- states ---


def random_places(count, length):
    generator = random.Random(7)
    return [generator.randrange(length + 1) for _ in range(count)]


def stored(state):
    """Return a state as it comes back from a file."""
    return json.loads(json.dumps(state))


def continued(batches, count):
    """Return the ids of the next batches, over the ends of epochs."""
    found = []
    while len(found) < count:
        for batch in batches:
            found.append(ids_of(batch))
            if len(found) == count:
                break
    return found


def check_round_trips(reader, writer, plain):
    """Check that `writer` continues from states of `reader` as if it had never stopped."""
    expected = [ids for epoch in epochs_of(plain, EPOCHS + 2) for ids in epoch]
    places = random_places(STATES, EPOCHS * STEPS)
    states, step = {}, 0
    for _ in range(EPOCHS):
        # Before an epoch has begun it is the end of the one before, or the start of all.
        states.setdefault(step, stored(reader.state_dict()))
        for batch in reader:
            assert ids_of(batch) == expected[step]
            step += 1
            states[step] = stored(reader.state_dict())
    for place in places:
        writer.load_state_dict(states[place])
        following = FOLLOWING if place % 4 == 0 else 3
        assert continued(writer, following) == expected[place : place + following], place


def pair(samples, made, **options):
    """Make a reader and a writer of states, with buffers for what nodes prefetch."""
    options["strategy"] = forebay.Strategy(batch_buffers=20)
    return [made(plain_loader(samples, name=name, **options)) for name in ("reader", "writer")]


MADE = {
    "loader": forebay.torch.loader,
    "copying": copying,
    "StatefulDataLoader": lambda loader: batches_of(
        forebay.torch.dataset(loader), StatefulDataLoader, collate_fn=lambda batch: batch
    ),
    "StatefulDataLoader, copying": lambda loader: batches_of(
        forebay.torch.dataset(copying(loader)), StatefulDataLoader, collate_fn=lambda batch: batch
    ),
    "node": lambda loader: torchdata.nodes.Loader(forebay.torch.node(loader)),
    "node, prefetched": lambda loader: torchdata.nodes.Loader(
        torchdata.nodes.Prefetcher(forebay.torch.node(loader), prefetch_factor=3)
    ),
    "node, copying, prefetched": lambda loader: torchdata.nodes.Loader(
        torchdata.nodes.Prefetcher(forebay.torch.node(copying(loader)), prefetch_factor=3)
    ),
}


@pytest.mark.parametrize(
    "options", [{}, {"transform": prepare, "workers": 2, "prefetch": 3}], ids=["plain", "threads"]
)
@pytest.mark.parametrize("made", MADE)
def test_from_50_random_steps_training_goes_on_as_if_it_had_never_stopped(samples, made, options):
    with plain_loader(samples, **options) as plain:
        check_round_trips(*pair(samples, MADE[made], **options), plain)


def test_a_node_behind_a_pipeline_has_the_values_of_the_loader(samples):
    node = forebay.torch.node(samples, BATCH, order="sequential", node_memory="16MiB")
    mapped = torchdata.nodes.ParallelMapper(
        node, lambda batch: batch["image"][:, 0, 0].tolist(), num_workers=2, method="thread"
    )
    with node.loader:
        found = [number for batch in torchdata.nodes.Loader(mapped) for number in batch]
    assert found == list(range(BATCH * STEPS))


@pytest.mark.parametrize("midpoint", [0, 1, 7, STEPS])
@pytest.mark.parametrize("prefetches", [False, True])
def test_what_torchdata_asks_of_the_state_of_a_node_holds(samples, midpoint, prefetches):
    def made(name):
        node = forebay.torch.node(
            plain_loader(samples, name=name, strategy=forebay.Strategy(batch_buffers=20))
        )
        return torchdata.nodes.Prefetcher(node, prefetch_factor=3) if prefetches else node

    with plain_loader(samples, name="expected") as plain:
        first, second, third = epochs_of(plain, 3)
    # A state before the first item, one in the middle, and one behind the last.
    node = made("first")
    node.reset()
    states = [stored(node.state_dict())]
    found = [ids_of(next(node)) for _ in range(midpoint)]
    states.append(stored(node.state_dict()))
    found += [ids_of(batch) for batch in node]
    states.append(stored(node.state_dict()))
    assert found == first
    node.reset()
    assert [ids_of(batch) for batch in node] == second
    # Each goes on in the same node and in another one, and then into the next epoch. Behind the
    # last item the rest is empty, unless the node has seen that it was the last one.
    rests = [first, first[midpoint:], [] if prefetches else second]
    for other in (node, made("second")):
        for state, rest in zip(states, rests, strict=True):
            other.reset(state)
            assert [ids_of(batch) for batch in other] == rest
            other.reset()
            assert [ids_of(batch) for batch in other] == (third if rest == second else second)
