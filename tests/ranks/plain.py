"""What a plain reader gives, for comparison, and the data sets it is compared on."""

from __future__ import annotations

import random

import support
from ranks import work

SAMPLES = 101  # a prime: no batch fits

ORDERS = {
    "sequential": {"order": "sequential"},
    "contiguous": {"order": "contiguous"},
    "shuffle": {"order": "shuffle"},
    "group": {"group": {"samples": 7, "window": 3, "lanes": 12}},
    "given": {"given": 5},
}
STRATEGIES = {
    "auto": {},
    "mmap": {"access": "mmap"},
    "pread": {"access": "pread"},
    "io_uring": {"access": "io_uring"},
    "pread-direct": {"access": "pread", "direct": True},
    "io_uring-direct": {"access": "io_uring", "direct": True},
    "cursor": {"locate": "cursor", "access": "mmap"},
    "async": {"access": "pread", "readers": "per_rank", "prefetch_windows": 1},
    "async-db": {"access": "pread", "readers": "per_rank", "prefetch_windows": 2},
}


def fits(strategy, order):
    """Whether a strategy can deliver an order: a cursor does not jump."""
    return strategy != "cursor" or order in ("sequential", "contiguous")


def write_mixed(path):
    """Return records from 0 B to 150 KB: inline ones and large ones, some in pages above 64 KiB."""
    rng = random.Random(1)
    usual = [1, 40, 900, 3000, 4100, 9000, 40_000]
    lengths = [0, 150_000, 70_000, *(rng.choice(usual) for _ in range(SAMPLES - 3))]
    rng.shuffle(lengths)
    values = [support.record(number, length) for number, length in enumerate(lengths)]
    return str(support.write_lmdb(path / "mixed.lmdb", values))


def write_even(path):
    """Records of one length."""
    values = [support.record(number, 3073) for number in range(SAMPLES)]
    return str(support.write_lmdb(path / "even.lmdb", values))


def expected(path, options, ranks, epochs, last="fill"):
    """By epoch, step and rank, the ids that a plain reader of the order gives.

    For the contiguous order, whose meaning depends on the ranks, this is written out; for the
    others it is one process with the whole global batch.
    """
    batch = options["batch_size"]
    if options.get("order") == "contiguous":
        return contiguous(SAMPLES, batch, ranks, epochs, last)
    with work.make(path, {}, {**options, "batch_size": batch * ranks, "last_batch": last}) as loader:
        whole = [[[int(number) for number in one.indices] for one in loader] for _ in range(epochs)]
    if "group" not in options:
        return [
            [[step[rank * batch : (rank + 1) * batch] for rank in range(ranks)] for step in epoch]
            for epoch in whole
        ]
    return whole


def contiguous(samples, batch, ranks, epochs, last):
    steps = samples // (batch * ranks) if last == "drop" else -(-samples // (batch * ranks))
    regions = [range(rank * samples // ranks, (rank + 1) * samples // ranks) for rank in range(ranks)]
    epoch = []
    for step in range(steps):
        own = []
        for region in regions:
            positions = range(step * batch, (step + 1) * batch)
            if last == "fill":
                own.append([region[position % len(region)] for position in positions])
            else:
                own.append([region[position] for position in positions if position < len(region)])
        epoch.append(own)
    return [epoch] * epochs


def together(found, epoch):
    """The steps of an epoch, each as the lists of its ranks."""
    steps = [one["found"][epoch] for one in found]
    assert len({len(own) for own in steps}) == 1, "the ranks have unequal steps"
    return [list(step) for step in zip(*steps, strict=True)]


def joined(steps):
    return [[number for own in step for number in own] for step in steps]
