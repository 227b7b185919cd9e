"""py-lmdb skipping, with a lock file of its own for every rank: the trick of the study of FEFS.

Each process opens a directory of its own that holds a symbolic link to the shared data file; LMDB
puts the lock file beside the link, so that processes share the data and no lock.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from forebay_lab.bench.baselines import Baseline, Place
from forebay_lab.bench.baselines.pylmdb_skipping import Skipping, open_environment


def _open(readahead: bool, place: Place) -> Skipping:
    data = Path(place.path)
    own = place.scratch / "ownlock"
    own.mkdir()
    (own / "data.mdb").symlink_to((data / "data.mdb" if data.is_dir() else data).absolute())
    return Skipping(place, open_environment(str(own), readahead))


BASELINES = tuple(
    Baseline(
        name="pylmdb-ownlock" + suffix,
        order="sequential",
        about="py-lmdb, skipping, a lock file of its own for every rank",
        open=partial(_open, readahead),
        modules=("lmdb",),
        formats=("lmdb",),
    )
    for suffix, readahead in (("", True), ("-noreadahead", False))
)
