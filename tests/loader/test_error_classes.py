"""The classes of errors: what they inherit, what they carry, and that every rank gets the same."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import time
import warnings

import pytest

import forebay
from forebay import errors


def test_every_class_is_public_has_its_built_in_and_says_what_it_means():
    built_ins = {
        "ForebayError": [Exception],
        "OptionError": [ValueError],
        "MemoryLimitError": [forebay.OptionError, MemoryError],
        "FormatError": [ValueError],
        "StorageError": [OSError],
        "StorageTimeout": [forebay.StorageError, TimeoutError],
        "RendezvousError": [RuntimeError],
        "PeerLostError": [RuntimeError],
    }
    assert sorted(built_ins) == sorted(errors.__all__)
    for name, bases in built_ins.items():
        kind = getattr(forebay, name)
        assert kind is getattr(errors, name)
        assert issubclass(kind, forebay.ForebayError)
        assert all(issubclass(kind, base) for base in bases)
        assert kind.__module__ == "forebay"
        assert kind.__doc__


@pytest.mark.parametrize("kind", [forebay.StorageError, forebay.StorageTimeout])
def test_a_storage_error_is_its_message_with_the_attributes_of_an_oserror(tmp_path, kind):
    error = kind("cannot read it\nhint: look at it", errno=errno.EIO, filename=tmp_path / "x")
    error.add_note("a note")
    for one in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(one) is kind
        assert str(one) == "cannot read it\nhint: look at it"
        assert (one.errno, one.strerror) == (errno.EIO, os.strerror(errno.EIO))
        assert one.filename == str(tmp_path / "x")
        assert one.__notes__ == ["a note"]
    plain = kind("no answer")
    assert (str(plain), plain.errno, plain.strerror, plain.filename) == ("no answer", None, None, None)


def test_a_file_that_is_not_there_has_errno_and_filename(tmp_path):
    for path in (tmp_path / "none.lmdb", f"{tmp_path}/none-*.tar"):
        with pytest.raises(forebay.StorageError) as gone:
            forebay.open(path)
        assert (gone.value.errno, gone.value.filename) == (errno.ENOENT, str(path))


def deliver_what_is_gone(world, pipe, path, opened):
    dataset = forebay.open(path, record_bytes=10)
    (opened / str(world["rank"])).touch()
    while len(list(opened.iterdir())) < 2:
        time.sleep(0.01)
    path.unlink(missing_ok=True)
    # The sidecar of a file that is gone is not kept.
    warnings.simplefilter("ignore")
    try:
        with forebay.Loader(dataset, 1, world=forebay.World(**world)) as loader:
            list(loader)
    except forebay.StorageError as error:
        return type(error).__name__, str(error), error.errno, error.strerror, error.filename
    return None


def test_the_ranks_of_a_node_get_the_errno_and_filename_that_their_leader_got(pool, tmp_path):
    path, opened = tmp_path / "x\udcff.raw", tmp_path / "opened"
    opened.mkdir()
    path.write_bytes(bytes(100))
    leader, follower = pool.run(2, deliver_what_is_gone, path=path, opened=opened)
    assert leader == follower
    kind, _, code, text, filename = leader
    assert (kind, code, text) == ("StorageError", errno.ENOENT, os.strerror(errno.ENOENT))
    assert filename == str(path)


def come_with(world, pipe, path, options):
    try:
        with forebay.Loader(path, world=forebay.World(**world), **options[world["rank"]]):
            return None
    except forebay.ForebayError as error:
        return type(error).__name__


def test_ranks_that_disagree_or_do_not_come_have_no_rendezvous(pool, small_lmdb):
    found = pool.run(2, come_with, path=small_lmdb, options=[{"batch_size": 4}, {"batch_size": 8}])
    assert found == ["RendezvousError"] * 2
    world = forebay.World(rank=0, size=2, local_rank=0, local_size=2, job="errors-alone")
    with pytest.warns(RuntimeWarning, match="rank 1"), pytest.raises(forebay.RendezvousError, match="rank 1"):
        forebay.Loader(small_lmdb, 4, world=world, timeout=1)
