"""A rank that fills a tier and may be killed; it imports little, so that it starts soon."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import forebay


def made(path: str, record_bytes: int, levels: list[str], **options: Any) -> forebay.Loader:
    dataset = forebay.open(path, format="raw", record_bytes=record_bytes)
    strategy = forebay.Strategy(access="pread")
    return forebay.Loader(dataset, 12, node_memory="128MiB", strategy=strategy, tiers=levels, **options)


def read_epoch(loader: forebay.Loader, expected: np.ndarray, pipe: Connection | None = None) -> None:
    """Compare an epoch with the source; say when its first batch is there."""
    for number, batch in enumerate(loader):
        (name,) = batch
        np.testing.assert_array_equal(batch[name], expected[batch.indices])
        if pipe and number == 0:
            pipe.send("begun")


def fill(pipe: Connection, environment: Mapping[str, str], world: Mapping[str, Any], **options: Any) -> None:
    """Be a rank that goes through epochs until it or another one is killed."""
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    expected = np.fromfile(options["path"], "uint8").reshape(-1, options["record_bytes"])
    try:
        with made(**options, world=forebay.World(**world)) as loader:
            while True:
                read_epoch(loader, expected, pipe)
    except (forebay.ForebayError, BrokenPipeError):
        # Another rank was killed, or the test has ended.
        pass
