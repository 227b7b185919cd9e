"""Read TFRecord files with the package tfrecord: ``package_tfrecord.py DIRECTORY``."""

import sys
from pathlib import Path

import epochs
from tfrecord.reader import tfrecord_loader


def read(_):
    for path in sorted(Path(sys.argv[1]).iterdir()):
        for sample in tfrecord_loader(str(path), None, {"x": "byte"}):
            yield len(sample["x"])


epochs.run(read)
