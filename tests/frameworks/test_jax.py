"""forebay.jax: pytrees of JAX arrays, their memory, shardings, states."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import subprocess
import sys
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import forebay
import support

pytest.importorskip("jax", reason="jax could not be had")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import forebay.jax

SAMPLES = 96


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Images and labels of 96 samples; each pixel of an image is its number.

    The images of a batch are more than what is copied, the labels less.
    """
    path = tmp_path_factory.mktemp("jax") / "train.npz"
    image = np.repeat(np.arange(SAMPLES, dtype=np.float32), 4096).reshape(SAMPLES, 64, 64)
    np.savez(path, image=image, label=np.arange(SAMPLES))
    return path


@pytest.fixture
def options():
    return {"order": "shuffle", "seed": 3, "node_memory": "16MiB"}


def numbers(loader):
    """The labels of the batches of an iteration."""
    return [np.asarray(batch["label"]).tolist() for batch in loader]


def test_batches_are_plain_dictionaries_of_jax_arrays(path, options):
    with forebay.Loader(path, 8, **options) as plain:
        expected = [{name: value.copy() for name, value in batch.items()} for batch in plain]
    with forebay.jax.loader(path, 8, **options) as loader:
        assert len(loader) == 12
        assert loader.config.data.samples == SAMPLES
        assert loader.explain() == loader.loader.explain()
        found = [jax.tree.map(np.array, batch) for batch in check_leaves(loader)]
    assert len(found) == len(expected)
    for batch, wanted in zip(found, expected, strict=True):
        for name, value in wanted.items():
            assert np.array_equal(batch[name], value)


def check_leaves(loader):
    for batch in loader:
        assert type(batch) is dict
        assert all(isinstance(value, jax.Array) for value in batch.values())
        yield batch


class Pair(NamedTuple):
    image: np.ndarray
    label: np.ndarray


@pytest.mark.parametrize("kind", ["dict", "tuple", "named", "array", "padded"])
def test_results_of_samples_are_pytrees(path, options, kind):
    def sample(sample):
        image, label = sample["image"], np.int32(sample["label"])
        if kind == "padded":
            return {"image": image[: 1 + int(label) % 8], "label": label}
        return {
            "dict": {"image": image, "label": label},
            "tuple": (image, label),
            "named": Pair(image, label),
        }.get(kind, image)

    collate = "pad" if kind == "padded" else None
    with forebay.jax.loader(path, 8, transform=sample, collate=collate, **options) as loader:
        for batch in loader:
            doubled = jax.tree.map(lambda leaf: leaf * 2, batch)
            assert jax.tree.structure(doubled) == jax.tree.structure(batch)
            if kind == "padded":
                assert type(batch["image"]) is forebay.Padded
                assert np.array_equal(batch["image"].lengths[:, 0], batch["label"] % 8 + 1)
            elif kind == "array":
                assert batch.shape == (8, 64, 64)
            else:
                image, label = batch.values() if kind == "dict" else batch
                assert type(batch) is {"dict": dict, "tuple": tuple, "named": Pair}[kind]
                assert np.array_equal(image[:, 0, 0], label)
            assert loader.position[0] == 0


def digest(batch):
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(batch))).hexdigest()


# What a loader says where all its buffers are held; it goes on with others.
held = pytest.mark.filterwarnings("ignore:loader .* batch buffers of this rank are still in use")


@held
@pytest.mark.parametrize("with_sample", [False, True])
def test_batches_that_are_kept_keep_their_bytes(path, options, with_sample):
    sample = (lambda sample: (sample["image"] + 1, sample["label"])) if with_sample else None
    with forebay.jax.loader(path, 8, transform=sample, **options) as loader:
        kept = [(batch, digest(batch)) for _ in range(5) for batch in loader]
    gc.collect()
    assert len({digest for _, digest in kept}) == 60
    assert all(digest(batch) == wanted for batch, wanted in kept)


def test_arrays_refer_to_the_batch_buffer_and_give_it_back(path, options):
    with forebay.jax.loader(path, 8, **options) as loader:
        addresses = set()
        for _ in range(4):
            for batch in loader:
                addresses.add(batch["image"].unsafe_buffer_pointer())
                del batch
        # As many as there are buffers: nothing was copied, and each buffer was filled again.
        assert len(addresses) <= loader.loader.config.memory.batch_buffers < 48
        assert loader.loader.stats()["heap_batches"] == 0


@held
@pytest.mark.parametrize("lengths", [1, 3, 64], ids=["one-shape", "some-shapes", "many-shapes"])
@pytest.mark.parametrize("is_compiling", [True, False])
def test_small_arrays_are_copies_whether_compiled_or_not(tmp_path, options, lengths, is_compiling):
    np.save(tmp_path / "small.npy", np.arange(64, dtype=np.int32))

    def sample(sample):
        value = sample["data"]
        return np.full(1 + int(value) % lengths, value, np.int32), np.float32(value)

    with (
        jax.disable_jit(not is_compiling),
        jax.transfer_guard("disallow"),  # what the script asks a loader for is no implicit transfer
        forebay.jax.loader(tmp_path / "small.npy", 1, transform=sample, collate="pad", **options) as loader,
    ):
        kept = [batch for _ in range(3) for batch in loader]
    gc.collect()
    with jax.transfer_guard("allow"):
        for at, (padded, value) in enumerate(kept):
            assert isinstance(value, jax.Array)
            assert value.dtype == np.float32
            assert padded.values.shape == (1, 1 + int(value[0]) % lengths)
            assert np.all(np.asarray(padded.values) == int(value[0])), at
    assert sorted(int(value[0]) for _, value in kept) == sorted([*range(64)] * 3)


def test_donated_batches_do_not_lend_their_buffer_to_results(path, options):
    step = jax.jit(lambda image: image + 1, donate_argnums=0)
    with warnings.catch_warnings(), forebay.jax.loader(path, 8, **options) as loader:
        warnings.simplefilter("ignore")  # JAX says that it could not use them.
        kept = []
        for _ in range(4):
            for batch in loader:
                first = np.asarray(batch["label"])
                kept.append((first, step(batch.pop("image"))))
    for labels, image in kept:
        assert np.array_equal(np.asarray(image)[:, 0, 0], labels + 1)


def test_any_state_resumes_exactly(path, options):
    def sample(sample, rng):
        return {"image": sample["image"] + rng.random(dtype=np.float32), "label": sample["label"]}

    chosen = np.random.default_rng(5).integers(1, 36, 50)
    with forebay.jax.loader(path, 8, transform=sample, workers=2, prefetch=3, **options) as loader:
        states, digests, positions = [], [], []
        for _ in range(3):
            for batch in loader:
                states.append(loader.state_dict())
                digests.append(digest(batch))
                positions.append(loader.position)
        assert [loader.state_at(position) for position in positions] == states
        for stop in chosen:
            loader.load_state_dict(states[stop - 1])
            rest = -stop % 12
            assert [digest(batch) for batch in loader] == digests[stop : stop + rest]
            if stop + rest < len(digests):
                assert digest(next(iter(loader))) == digests[stop + rest]


def test_integers_that_do_not_fit_32_bits_raise(tmp_path, options):
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, 2**31], np.int64))
    with (
        forebay.jax.loader(tmp_path / "x.npy", 4, **options) as loader,
        pytest.raises(forebay.OptionError, match=r"field \['data'\]: .* 2147483648 do not fit int32"),
    ):
        next(iter(loader))
    with jax.enable_x64(True), forebay.jax.loader(tmp_path / "x.npy", 4, **options) as loader:
        assert sorted(np.asarray(next(iter(loader))["data"]).tolist()) == [1, 2, 3, 2**31]


def test_rounded_floats_warn_once(tmp_path, options):
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 16))
    with forebay.jax.loader(tmp_path / "x.npy", 4, **options) as loader:
        with pytest.warns(RuntimeWarning, match="float64 is rounded to float32") as found:
            batches = list(loader)
        assert len(found) == 1
        assert {batch["data"].dtype for batch in batches} == {jnp.dtype("float32")}


def test_big_endian_numbers_keep_their_values(tmp_path, options):
    np.save(tmp_path / "x.npy", np.arange(16, dtype=">f4"))
    with forebay.jax.loader(tmp_path / "x.npy", 16, **options) as loader:
        assert sorted(next(iter(loader))["data"].tolist()) == list(range(16))


def list_of_last(results):
    return results[-1]


@pytest.mark.parametrize("value", ["text", np.datetime64("2020-01-01"), [1, 2]])
def test_what_no_jax_array_can_hold_names_its_field(path, options, value):
    with (
        forebay.jax.loader(
            path, 8, transform=lambda sample: {"a": (1, value)}, collate=list_of_last, **options
        ) as loader,
        pytest.raises(forebay.OptionError, match=r"field \['a'\]\[1\]"),
    ):
        next(iter(loader))


def test_fields_of_varying_length_are_refused_at_once(tmp_path, options):
    path = support.write_lmdb(tmp_path / "x.lmdb", [b"x" * (number + 1) for number in range(16)])
    with pytest.raises(forebay.OptionError, match="field 'data' has a different length in each sample"):
        forebay.jax.loader(path, 4, **options)


def test_a_sharding_that_is_none_is_refused(path, options):
    with pytest.raises(forebay.OptionError, match=r"expected a jax\.sharding\.Sharding"):
        forebay.jax.loader(path, 8, sharding="data", **options)


def test_a_single_sharding_and_one_by_field(path, options):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with forebay.jax.loader(path, 8, sharding={"image": sharding, "label": None}, **options) as loader:
        batch = next(iter(loader))
        assert batch["image"].sharding == sharding
        assert batch["label"].shape == (8,)
    with (
        forebay.jax.loader(path, 8, sharding={"image": sharding}, **options) as loader,
        pytest.raises(forebay.OptionError, match="sharding= has the tree"),
    ):
        next(iter(loader))


DEVICES = """
import sys, json
import numpy as np, jax, forebay, forebay.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()).reshape(4), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
options = {"order": "sequential", "node_memory": "16MiB"}
found = []
with forebay.jax.loader(sys.argv[1], 8, sharding=sharding, **options) as loader:
    for batch in loader:
        assert batch["image"].sharding == sharding and len(batch["image"].addressable_shards) == 4
        assert {shard.data.shape for shard in batch["image"].addressable_shards} == {(2, 64, 64)}
        found += jax.jit(lambda image: image[:, 0, 0])(batch["image"]).tolist()
assert found == list(range(96)), found
errors = []
with forebay.jax.loader(sys.argv[1], 20, sharding=sharding, **options) as loader:
    assert [len(batch["image"]) for batch in loader] == [20, 20, 20, 20, 16]
fewer = forebay.open(sys.argv[1]).select(range(95))
with forebay.jax.loader(fewer, 20, sharding=sharding, last_batch="fill", **options) as loader:
    assert [len(batch["image"]) for batch in loader] == [20] * 5
for source, batch in ((sys.argv[1], 6), (fewer, 20)):
    try:
        forebay.jax.loader(source, batch, sharding=sharding, **options)
    except forebay.OptionError as error:
        errors.append(str(error))
print(json.dumps(errors))
"""


def test_a_sharding_divides_batches_among_the_devices_of_a_host(path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    done = support.run_python(DEVICES, path)
    assert done.returncode == 0, done.stderr
    divided, short = json.loads(done.stdout)
    assert "among 4 devices, and a step has 6 samples" in divided
    assert 'last_batch="partial" makes a last step of 15 samples' in short
    assert 'last_batch="drop" or "fill"' in short


HOSTS = """
import os, sys, json
rank, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import jax
jax.distributed.initialize(f"localhost:{port}", 2, rank)
import numpy as np, forebay, forebay.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.experimental import multihost_utils
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
options = {"order": "shuffle", "seed": 3, "node_memory": "16MiB"}
try:
    forebay.jax.loader(path, 8, sharding=sharding, **options, name="alone", world="single")
    error = ""
except forebay.OptionError as problem:
    error = str(problem)
world = forebay.jax.world()
with forebay.jax.loader(path, 8, sharding=sharding, world=world, **options) as loader:
    local = [world.rank, world.size, list(world.local_ranks)]
    batches = []
    for batch in loader:
        assert batch["image"].shape == (16, 64, 64)
        total = jax.jit(lambda image: image[:, 0, 0].sum())(batch["image"])
        whole = multihost_utils.process_allgather(batch["label"], tiled=True)
        batches.append([whole.tolist(), float(total)])
print("EMIT", json.dumps([local, error, batches]))
"""


def test_two_processes_of_jax_make_global_arrays(path, tmp_path, monkeypatch):
    # Two processes do not share a device, where there is one.
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    port = free_port()
    script = tmp_path / "host.py"
    script.write_text(HOSTS)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(port), path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=support.DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    found = [json.loads(out.partition("EMIT")[2]) for out, _ in outputs]
    assert [one[0] for one in found] == [[0, 2, [0, 1]], [1, 2, [0, 1]]]
    assert all("world=forebay.jax.world()" in one[1] for one in found)
    assert found[0][2] == found[1][2]
    with forebay.Loader(path, 16, order="shuffle", seed=3, node_memory="16MiB") as plain:
        expected = [batch["label"].tolist() for batch in plain]
    # The same global batches in the same order as one rank alone.
    assert [labels for labels, _ in found[0][2]] == expected
    assert [total for _, total in found[0][2]] == [float(sum(labels)) for labels in expected]


def free_port():
    import socket

    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def test_batches_of_a_plain_loader_are_trees_of_jax(path, options):
    calls = []

    @jax.jit
    def doubled(batch):
        calls.append(batch)
        return jax.tree.map(lambda value: value * 2, batch)

    for sample in (None, lambda sample: (sample["image"], sample["label"])):
        calls.clear()
        with forebay.Loader(path, 8, transform=sample, **options) as loader:
            for batch in itertools.islice(loader, 3):
                found = doubled(jax.tree.map(jnp.asarray, batch))
                assert type(found) is type(batch)
                label = "label" if sample is None else 1
                assert np.array_equal(found[label], batch[label] * 2)
        # Indices and positions are no part of the form, for each of which JAX compiles.
        assert len(calls) == 1
