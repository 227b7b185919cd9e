"""forebay.torch.loader: batches become tensors without a copy, and what cannot says so."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.utils._pytree as _pytree
from torch.testing._internal.distributed.fake_pg import FakeStore

import forebay
import forebay.torch
import support
from forebay.loader import LoaderOptions
from forebay.torch._loader import TensorOptions
from forebay.torch._tensors import Tensors
from frameworks.torch_support import BATCH, SAMPLES, STEPS, ids_of, plain_loader, prepare, write_samples


@pytest.fixture
def samples(tmp_path):
    return write_samples(tmp_path / "samples.npz")


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


# --- form ---


def test_batches_are_those_of_the_loader_and_share_their_memory(samples):
    with plain_loader(samples) as plain, forebay.torch.loader(plain_loader(samples, name="torch")) as found:
        assert len(found) == len(plain) == STEPS
        assert found.batch_size == BATCH
        for expected, batch in zip(plain, found, strict=True):
            assert type(batch) is forebay.torch.TensorBatch
            assert batch.position == expected.position
            assert batch.indices.tolist() == expected.indices.tolist()
            for name, array in expected.items():
                assert torch.equal(batch[name], torch.from_numpy(array))
        assert found.epoch == plain.epoch == 1
        assert found.loader.stats()["samples"] == SAMPLES


def test_tensors_are_writable_views_whose_buffer_is_reused_once_they_are_dropped(samples):
    seen = set()
    with forebay.torch.loader(plain_loader(samples, expected_epochs=8)) as loader:
        for _ in range(8):
            for batch in loader:
                seen.add(batch["image"].data_ptr())
                batch["image"].mul_(2)
                assert batch["image"][:, 0, 0].tolist() == [2 * number for number in batch.indices]
        assert len(seen) <= loader.loader.config.memory.batch_buffers


def test_batches_that_the_script_keeps_stay_as_they_were(samples):
    loader = forebay.torch.loader(plain_loader(samples), pin_memory=False)
    with loader, pytest.warns(RuntimeWarning, match="batch buffers of this rank are still in use"):
        kept = list(loader)
    for batch in kept:
        assert batch["image"][:, 0, 0].tolist() == batch.indices.tolist()


def test_results_of_functions_keep_their_form(samples):
    forms = {
        "tuple": prepare,
        "dictionary": lambda sample: {"image": sample["image"], "meta": {"name": "a", "raw": b"\x00"}},
        "named": lambda sample: Pair(sample["image"], sample["label"]),
    }
    found = {}
    for name, function in forms.items():
        with forebay.torch.loader(
            samples, BATCH, order="sequential", transform=function, name=name
        ) as loader:
            found[name] = next(iter(loader))
    assert type(found["tuple"]) is forebay.torch.TensorTuple
    images, labels = found["tuple"]
    assert images.shape == (BATCH, 4, 4)
    assert labels.tolist() == list(range(BATCH))
    assert found["tuple"].position == (0, 0)
    assert isinstance(found["dictionary"], forebay.Batch)
    assert found["dictionary"]["meta"] == {"name": ["a"] * BATCH, "raw": [b"\x00"] * BATCH}
    assert type(found["named"]) is Pair
    assert found["named"].label.dtype == torch.int64


def test_ragged_results_make_a_nested_tensor(samples):
    with forebay.torch.loader(
        samples,
        BATCH,
        order="sequential",
        transform=lambda sample: np.arange(sample["label"]),
        collate="ragged",
    ) as loader:
        ragged = next(iter(loader))
    assert type(ragged) is forebay.Ragged
    nested = torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)
    assert [one.tolist() for one in nested.unbind()] == [list(range(label)) for label in range(BATCH)]


def test_a_field_whose_length_varies_is_a_list_of_tensors(tmp_path):
    records = [support.record(number, 10 + number) for number in range(8)]
    path = support.write_lmdb(tmp_path / "records", records)
    with forebay.torch.loader(path, 8, order="sequential", node_memory="16MiB") as loader:
        batch = next(iter(loader))
    assert [bytes(one.numpy()) for one in batch["data"]] == records


# --- dtypes ---


@pytest.mark.parametrize(
    "dtype",
    ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"],
)
def test_dtypes_that_torch_has_are_shared(dtype):
    array = np.arange(3).astype(dtype)
    tensor = Tensors().batch(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_ml_dtypes_are_shared(name):
    array = np.arange(3).astype(getattr(ml_dtypes, name))
    tensor = Tensors().batch(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.dtype == getattr(torch, name)
    assert tensor.float().tolist() == [0, 1, 2]


def read_only():
    array = np.arange(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4).astype(">i4"),
        np.arange(4)[::-1],
        np.broadcast_to(np.float32(1), (2, 2)),
        read_only(),
        np.frombuffer(b"\x00" + np.arange(3).tobytes(), np.uint8)[1:].view("V8").view("i8"),
        np.zeros(3, [("a", "u1"), ("b", "f4")])["b"],
        np.float32(2),
    ],
    ids=["big-endian", "reversed", "broadcast", "read-only", "unaligned", "strided", "scalar"],
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_cannot_be_shared_are_copied(array):
    tensor = Tensors().batch(array)
    assert tensor.tolist() == np.asarray(array).tolist()
    before = np.array(array)
    tensor.fill_(7)
    assert np.array_equal(array, before)


def test_arrays_of_strings_become_lists():
    assert Tensors().batch({"name": np.array(["a", "bc"]), "raw": np.array([b"x"])}) == {
        "name": ["a", "bc"],
        "raw": [b"x"],
    }


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (np.array([1, "a"], object), "return arrays of numbers"),
        (np.zeros(2, np.longdouble), "torch.float64"),
        (np.zeros(2, np.clongdouble), "torch.complex128"),
        (np.zeros(2, "datetime64[s]"), "torch.int64"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "return fields one by one"),
        (np.ma.masked_array([1, 2], [True, False]), "as two arrays"),
    ],
    ids=["object", "longdouble", "clongdouble", "datetime", "structured", "masked"],
)
def test_what_torch_cannot_hold_is_an_error_that_names_the_field(array, hint):
    with pytest.raises(forebay.OptionError, match=r"part 1 of field 'x'.*shape \(2,\)") as caught:
        Tensors().batch({"y": np.zeros(2), "x": (np.zeros(1), array)})
    assert hint in str(caught.value)


def test_dtypes_say_what_becomes_of_a_dtype():
    tensors = Tensors({"u2": torch.int32, np.float64: torch.float32, np.longdouble: torch.float64,
                       "datetime64[s]": torch.int64})  # fmt: skip
    batch = tensors.batch(
        [
            np.array([1, 65535], "u2"),
            np.array([0.5]),
            np.array([0.25], np.longdouble),
            np.array([5], "datetime64[s]"),
            np.array([7], ">u2"),
            np.array([9], "i8"),
        ]
    )
    assert [(one.dtype, one.tolist()) for one in batch] == [
        (torch.int32, [1, 65535]),
        (torch.float32, [0.5]),
        (torch.float64, [0.25]),
        (torch.int64, [5]),
        (torch.int32, [7]),
        (torch.int64, [9]),
    ]


@pytest.mark.parametrize(
    "dtypes", [{"u2": "int32"}, {"u2": np.int32}, {"no dtype": torch.int32}, ["u2"]], ids=str
)
def test_wrong_dtypes_are_refused(samples, dtypes):
    with pytest.raises(forebay.OptionError, match="dtypes="):
        forebay.torch.loader(samples, BATCH, dtypes=dtypes)


# --- devices ---


def test_batches_are_delivered_on_a_device(samples):
    with forebay.torch.loader(samples, BATCH, device="meta", transform=prepare) as loader:
        for images, labels in loader:
            assert images.is_meta
            assert images.shape == (BATCH, 4, 4)
            assert labels.is_meta
    with forebay.torch.loader(samples, BATCH, device="cpu", order="sequential") as loader:
        assert next(iter(loader))["label"].tolist() == list(range(BATCH))


@pytest.mark.parametrize("sample", [None, prepare], ids=["dictionary", "tuple"])
def test_a_batch_moves_to_a_device_as_a_whole(samples, sample):
    with forebay.torch.loader(samples, BATCH, transform=sample) as loader:
        batch = next(iter(loader))
    moved = batch.to("meta")
    assert type(moved) is type(batch)
    assert (moved.position, moved.indices.tolist()) == (batch.position, batch.indices.tolist())
    values = moved.values() if sample is None else moved
    assert all(value.is_meta for value in values)
    assert len(values) == 2
    same = batch.to("cpu", non_blocking=True)
    assert same["label"] is batch["label"] if sample is None else same[1] is batch[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a CUDA device")
def test_without_a_cuda_device_it_says_so(samples):
    with pytest.raises(forebay.OptionError, match="torch finds no CUDA device"):
        forebay.torch.loader(samples, BATCH, device="cuda")
    with pytest.warns(RuntimeWarning, match="pin_memory=True has no effect"):
        loader = forebay.torch.loader(samples, BATCH, pin_memory=True)
    with loader:
        assert sum(1 for _ in loader) == STEPS


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_a_device_that_torch_cannot_use_is_refused(samples, device):
    if getattr(torch, device).is_available():
        pytest.skip(f"torch has {device} here")
    with pytest.raises(forebay.OptionError, match=f'device="{device}": torch cannot use it'):
        forebay.torch.loader(samples, BATCH, device=device)


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"device": 1.5}, {"pin_memory": 1}], ids=str)
def test_wrong_devices_are_refused(samples, wrong):
    with pytest.raises(forebay.OptionError, match=rf"{next(iter(wrong))}="):
        forebay.torch.loader(samples, BATCH, **wrong)


# --- errors ---


def test_an_exception_of_a_decoder_is_raised_at_its_step_and_the_next_one_follows(samples):
    def broken(sample):
        if sample["image"][0, 0] == 20:
            raise ValueError("no image")
        return sample["label"]

    with forebay.torch.loader(samples, BATCH, order="sequential", transform=broken) as loader:
        batches = iter(loader)
        assert [next(batches).tolist()[0] for _ in range(2)] == [0, 8]
        with pytest.raises(ValueError, match="no image") as caught:
            next(batches)
        assert "step 2" in "".join(caught.value.__notes__)
        assert loader.state_dict()["step"] == 3
        assert next(batches).tolist()[0] == 4


def test_a_field_that_torch_cannot_hold_is_an_error_at_its_step(tmp_path):
    np.save(tmp_path / "times.npy", np.zeros((8, 2), "datetime64[s]"))
    with forebay.torch.loader(tmp_path / "times.npy", 4) as loader:
        with pytest.raises(
            forebay.OptionError, match="field 'data': torch has no tensor for dtype datetime64"
        ):
            next(iter(loader))
        assert loader.state_dict()["step"] == 1


def test_options_beside_a_loader_are_refused(samples):
    with (
        plain_loader(samples) as loader,
        pytest.raises(forebay.OptionError, match="expected no options of"),
    ):
        forebay.torch.loader(loader, seed=1)


FAKE = """
import sys, types
import forebay
fake = types.ModuleType({module!r})
fake.__version__ = {version!r}
sys.modules[{module!r}] = fake if {version!r} else None
try:
    {call}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "version", "call", "said"),
    [
        ("torch", "", "import forebay.torch", ["forebay.torch: torch cannot be imported", "torch>=2.3"]),
        ("torch", "2.2.1+cpu", "forebay.torch", ["expected torch 2.3 or later, found 2.2.1+cpu"]),
        ("torchdata", "0.9.0", "forebay.torch.node('x.npy', 1)", ["expected torchdata 0.10 or later"]),
    ],
)
def test_a_framework_that_is_missing_or_too_old_is_named_with_what_to_install(module, version, call, said):
    code = FAKE.format(module=module, version=version, call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for words in said:
        assert words in done.stdout
    assert "hint: pip install" in done.stdout


def test_a_loader_that_was_made_before_the_process_group_raises_when_it_is_iterated(samples):
    with (
        forebay.torch.loader(samples, BATCH, node_memory="16MiB") as early,
        forebay.torch.loader(samples, BATCH, node_memory="16MiB", name="stated", world="single") as stated,
    ):
        torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
        try:
            with pytest.raises(forebay.OptionError, match="make the loader after"):
                next(iter(early))
            assert len(next(iter(stated))["label"]) == BATCH
        finally:
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sample", [None, lambda sample: (sample["image"], sample["label"])])
def test_tree_functions_of_torch_reach_the_tensors_of_a_batch(samples, sample):
    with (
        plain_loader(samples, transform=sample) as plain,
        forebay.torch.loader(plain_loader(samples, transform=sample, name="torch")) as loader,
    ):
        for batch in (next(iter(plain)), next(iter(loader))):
            doubled = _pytree.tree_map(lambda value: value * 2, batch)
            assert type(doubled) is type(batch)
            assert (ids_of(doubled), doubled.position) == (ids_of(batch), (0, 0))
            label = "label" if sample is None else 1
            assert (doubled[label] == batch[label] * 2).all()
            summed = _pytree.tree_map(lambda one, other: one + other, batch, doubled)
            assert (summed[label] == batch[label] * 3).all()
            [(path, _), _] = _pytree.tree_flatten_with_path(batch)[0]
            assert _pytree.keystr(path) == ("['image']" if sample is None else "[0]")
            # Libraries that know a mapping or a tuple make it anew.
            made = type(batch)(dict(batch) if sample is None else tuple(batch))
            assert made.indices is None
            if hasattr(made, "to"):
                assert type(made.to("cpu")) is type(batch)


def test_a_loader_of_tensors_answers_as_the_loader_behind_it(samples):
    with forebay.torch.loader(plain_loader(samples)) as found:
        next(iter(found))
        assert found.config == found.loader.config
        assert found.explain() == found.loader.explain()
        assert found.stats()["requested_bytes"] > 0
        assert found.bad_samples() == []
        assert repr(found.loader) in repr(found)
        assert found._repr_html_() == found.loader._repr_html_()


def test_type_checkers_know_the_options_of_a_loader_of_tensors():
    own = set(typing.get_type_hints(TensorOptions)) - set(typing.get_type_hints(LoaderOptions))
    parameters = inspect.signature(forebay.torch.loader).parameters
    assert own == set(parameters) - {"source", "batch_size", "options"}
