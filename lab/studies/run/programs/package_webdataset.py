"""Read tar files with the package webdataset: ``package_webdataset.py DIRECTORY``."""

import sys
import warnings
from pathlib import Path

import epochs

warnings.simplefilter("ignore")
import webdataset  # noqa: E402


def read(_):
    shards = sorted(map(str, Path(sys.argv[1]).iterdir()))
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        yield len(sample["bin"])


epochs.run(read)
