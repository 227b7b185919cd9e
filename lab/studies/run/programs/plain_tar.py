"""Read tar files with the standard library: ``plain_tar.py DIRECTORY``."""

import sys
import tarfile
from pathlib import Path

import epochs


def read(_):
    for path in sorted(Path(sys.argv[1]).iterdir()):
        with tarfile.open(path) as shard:
            for member in shard:
                yield len(shard.extractfile(member).read())


epochs.run(read)
