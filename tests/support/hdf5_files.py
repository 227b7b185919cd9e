"""Helpers for tests of HDF5: values, a comparison with h5py, libhdf5 itself, refused files."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

import forebay
from forebay._formats import hdf5_structure as hdf5


def values(shape, dtype, seed=0):
    """Values of which some repeat, so that compressors have something to do."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype == np.dtype("?"):
        return random.random(shape) < 0.5
    if dtype.kind in "iuf":
        return random.integers(0, 100, shape).astype(dtype)
    items = random.integers(0, 4, (*shape, dtype.itemsize), dtype=np.uint8)
    # Nothing but text in strings: zeros at their end are not seen by numpy.
    items += 65 if dtype.kind == "S" else 0
    return items.view(dtype).reshape(shape)


def same(found, wanted):
    """Whether two values are the same to the bit, and of one type and shape."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    return found.tobytes() == wanted.tobytes()


def check(path, **options):
    """Compare all samples with h5py, forwards and one by one."""
    dataset = forebay.open(path, **options)
    assert dataset.format == "hdf5"
    with h5py.File(path) as file:
        wanted = {name: file[name][()] for name in dataset.fields}
    for name, rows in wanted.items():
        assert len(dataset) == len(rows)
        told, shape = dataset.fields[name]
        assert shape == rows.shape[1:]
        assert told == rows.dtype.name or not rows.dtype.isnative or rows.dtype.kind not in "biuf"
    for index, sample in enumerate(dataset):
        assert set(sample) == set(wanted)
        for name, rows in wanted.items():
            assert same(sample[name], rows[index, ...]), (name, index)
    return dataset


def library():
    """Return the libhdf5 that h5py has loaded, for what h5py has no function for."""
    with Path("/proc/self/maps").open() as maps:
        paths = {line.split()[-1] for line in maps if re.search(r"/libhdf5[-.][^/]*$", line.strip())}
    (path,) = paths
    found = ctypes.CDLL(path)
    found.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    return found


def described(path, fields=()):
    bytes_ = hdf5.find(str(path), list(fields))
    length = int.from_bytes(bytes_[:4], "little")
    return json.loads(bytes_[4 : 4 + length]), bytes_[4 + length :]


def refused(path, **options):
    """Return how a file is refused."""
    with pytest.raises(forebay.FormatError) as caught:
        len(forebay.open(path, **options))
    return str(caught.value)
