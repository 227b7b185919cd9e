"""Read TFRecord files as plain Python does: ``plain_tfrecord.py DIRECTORY``."""

import struct
import sys
from pathlib import Path

import epochs


def read(_):
    for path in sorted(Path(sys.argv[1]).iterdir()):
        with path.open("rb") as file:
            while head := file.read(12):
                (length,) = struct.unpack_from("<Q", head)
                yield len(file.read(length))
                file.read(4)


epochs.run(read)
