"""Read small files in a new order each epoch, by workers that are forked for it, as PyTorch does.

``shuffled_files.py DIRECTORY WORKERS [PROCESSES]``: each process reads all files, in an order of
its own.
"""

import multiprocessing
import os
import random
import sys
from pathlib import Path

import epochs

PATHS = sorted(path for path in Path(sys.argv[1]).rglob("*") if path.is_file())
WORKERS = int(sys.argv[2])
PROCESSES = int(sys.argv[3]) if len(sys.argv) > 3 else 1
FORK = multiprocessing.get_context("fork")


def length(path):
    return len(path.read_bytes())


def read_in_workers(seed, pipe=None):
    order = random.Random(seed).sample(PATHS, len(PATHS))
    with FORK.Pool(WORKERS) as pool:
        lengths = list(pool.imap(length, order, chunksize=8))
    if pipe is None:
        return lengths
    os.write(pipe, b"%d\n" % sum(lengths))
    return os._exit(0)


def read(epoch):
    if PROCESSES == 1:
        yield from read_in_workers(epoch)
        return
    ends, pipe = os.pipe()
    for number in range(PROCESSES):
        if os.fork() == 0:
            os.close(ends)
            read_in_workers(1000 * epoch + number, pipe)
    os.close(pipe)
    with os.fdopen(ends) as lines:
        yield from map(int, lines)
    for _ in range(PROCESSES):
        os.wait()


epochs.run(read)
