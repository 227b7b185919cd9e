"""What a plain reader gives, for comparison, and the datasets it is compared on."""

from __future__ import annotations

import itertools
import random

import support
from support.ranks import work

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


def expected(path, options, ranks, epochs, last="partial"):
    """By epoch, step and rank, the ids that a plain reader of the order gives.

    For the contiguous order, whose meaning depends on the ranks, this is written out; for the
    others it is one process with the whole global batch.
    """
    batch = options["batch_size"]
    if options.get("order") == "contiguous":
        return contiguous(SAMPLES, batch, ranks, epochs, last)
    with work.make(path, {}, {**options, "batch_size": batch * ranks, "last_batch": last}) as loader:
        whole = [[[int(number) for number in one.indices] for one in loader] for _ in range(epochs)]
    if "group" in options:
        return whole
    ways = sizes(SAMPLES, batch, ranks, last)
    found = []
    for epoch in whole:
        ids = iter([number for step in epoch for number in step])
        found.append([[[next(ids) for _ in range(count)] for count in step] for step in ways])
        assert next(ids, None) is None
    return found


def sizes(samples, batch, ranks, last):
    """The samples of each rank, by step."""
    full, rest = divmod(samples, batch * ranks)
    if last != "partial":
        return [[batch] * ranks] * (full + (last != "drop" and rest > 0))
    # What is left of each rank's even part of the epoch behind the whole steps, in one step or two.
    steps = 0 if rest == 0 else 1 if rest >= ranks or batch == 1 else 2
    whole = full if rest >= ranks or rest == 0 else full - 1
    edges = [rank * samples // ranks - rank * whole * batch for rank in range(ranks + 1)]
    halves = [edge // 2 for edge in edges] if steps == 2 else edges
    first = [after - before for before, after in itertools.pairwise(halves)]
    second = [
        after - before - one for (before, after), one in zip(itertools.pairwise(edges), first, strict=True)
    ]
    return [[batch] * ranks] * whole + [first, second][:steps]


def contiguous(samples, batch, ranks, epochs, last):
    ways = sizes(samples, batch, ranks, last)
    regions = [range(rank * samples // ranks, (rank + 1) * samples // ranks) for rank in range(ranks)]
    epoch, taken = [], [0] * ranks
    for step in ways:
        own = []
        for rank, count in enumerate(step):
            region, first = regions[rank], taken[rank]
            own.append([region[position % len(region)] for position in range(first, first + count)])
            taken[rank] += count
        epoch.append(own)
    return [epoch] * epochs


def together(found, epoch):
    """The steps of an epoch, each as the lists of its ranks."""
    steps = [one["found"][epoch] for one in found]
    assert len({len(own) for own in steps}) == 1, "the ranks have unequal steps"
    return [list(step) for step in zip(*steps, strict=True)]


def joined(steps):
    return [[number for own in step for number in own] for step in steps]
