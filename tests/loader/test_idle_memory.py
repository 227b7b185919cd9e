"""Loaders of a process share a budget: idle ones release memory, so many can take turns."""

from __future__ import annotations

import gc
import itertools
import json
import threading

import numpy as np
import pytest

import forebay
from support import run_python

SAMPLES, BATCH, SAMPLE_BYTES = 8, 4, 1 << 20

# 64 buffers of 4 MiB: a region of over 256 MiB, of which an epoch of 8 MiB touches two buffers.
WIDE = {"strategy": forebay.Strategy(batch_buffers=64), "order": "shuffle", "expected_epochs": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "samples.npy"
    values = np.zeros((SAMPLES, SAMPLE_BYTES), np.uint8)
    values[:, 0] = np.arange(SAMPLES)
    np.save(path, values)
    return path


@pytest.fixture
def make(path):
    """Make loaders; they are closed in the end."""
    made = []

    def one(**options):
        made.append(forebay.Loader(path, BATCH, name=f"loader-{len(made)}", **{**WIDE, **options}))
        return made[-1]

    # What a failed test before this one refers to has not given its share back.
    gc.collect()
    yield one
    for loader in made:
        loader.close()


def check(loader):
    """Go through an epoch."""
    found = []
    for batch in loader:
        assert batch["data"][:, 0].tolist() == batch.indices.tolist()
        found += batch.indices.tolist()
    assert sorted(found) == list(range(SAMPLES))


def touched_mib(loader):
    return loader.config.now.touched_bytes / (1 << 20)


def is_lent(loader):
    return loader.config.memory.on_loan


def lent_after(make):
    """Loaders that share all of the memory, and one more, on loan."""
    loaders = [make()]
    while not is_lent(loaders[-1]):
        loaders.append(make())
    *reserved, lent = loaders
    assert 0 < len(reserved) < 17
    assert sum(one.config.memory.region_bytes for one in reserved) <= reserved[0].config.memory.budget_bytes
    return reserved, lent


@pytest.mark.full
def test_sixty_four_default_loaders_are_made_and_iterated_in_turns(make):
    loaders = [make() for _ in range(64)]
    assert not is_lent(loaders[0])
    assert is_lent(loaders[-1])
    assert all(touched_mib(one) <= 1 for one in loaders)
    budget = loaders[0].config.memory.budget_bytes
    regions = {one.name: one.config.memory.region_bytes for one in loaders}
    assert sum(regions.values()) > 2 * budget
    for one in loaders:
        check(one)
    # Those that were iterated last hold memory, as much as there is.
    holding = [one for one in loaders if touched_mib(one) > 1]
    assert sum(regions[one.name] for one in holding) <= budget
    assert holding[-1] is loaders[-1]
    for one in loaders:
        check(one)


def test_a_loader_whose_memory_was_taken_goes_on_where_it_was(make):
    reserved, lent = lent_after(make)
    plain = [[batch.indices.tolist() for batch in lent] for _ in range(3)]
    found = [[batch.indices.tolist() for batch in reserved[0]]]
    state = reserved[0].state_dict()
    assert touched_mib(reserved[0]) > 1
    for one in [*reserved[1:], lent]:
        check(one)
    # The one that was used first gave up what it had.
    assert touched_mib(reserved[0]) <= 1
    assert reserved[0].state_dict() == state
    found += [[batch.indices.tolist() for batch in reserved[0]] for _ in range(2)]
    assert found == plain


def test_a_batch_that_is_held_keeps_its_memory_and_its_samples(make):
    reserved, lent = lent_after(make)
    held = next(iter(reserved[0]))
    copy = held["data"].copy()
    reserved[0].set_epoch(1)
    for one in [*reserved[1:], lent]:
        check(one)
    # Its buffer, and a little of what is not a buffer.
    assert 4 <= touched_mib(reserved[0]) <= 6
    np.testing.assert_array_equal(held["data"], copy)
    del held
    check(reserved[0])


def test_loaders_in_the_middle_of_an_epoch_keep_their_memory_and_are_named(make):
    reserved, lent = lent_after(make)
    passes = [iter(one) for one in reserved]
    for one in passes:
        next(one)
    with pytest.raises(forebay.MemoryLimitError) as raised:
        check(lent)
    message, _, hint = str(raised.value).partition("\nhint: ")
    assert all(one.name in message for one in reserved)
    assert hint
    # Nothing was taken from them.
    for one in passes:
        assert len(list(one)) == 1
    check(lent)


def test_an_iteration_that_was_broken_off_is_idle(make):
    reserved, lent = lent_after(make)
    for one in reserved:
        for _ in one:
            break
    check(lent)
    for one in reserved:
        check(one)


def test_a_loader_that_was_closed_leaves_its_memory_to_the_next(make):
    reserved, lent = lent_after(make)
    lent.close()
    reserved[0].close()
    assert not is_lent(make())


def test_with_memory_of_its_own_a_loader_is_refused_as_ever(make):
    lent_after(make)
    with pytest.raises(forebay.OptionError, match="node_memory=314572800"):
        make(node_memory="300MiB")


def test_threads_that_iterate_at_once_never_take_memory_in_use(make):
    reserved, lent = lent_after(make)
    loaders = [*reserved, lent, *(make() for _ in range(3))]
    failed = []
    stop = threading.Event()

    def work(mine):
        try:
            for one in itertools.islice(itertools.cycle(mine), 3 * len(mine)):
                # What is refused is asked for again.
                while not stop.is_set():
                    try:
                        check(one)
                        break
                    except forebay.MemoryLimitError:
                        continue
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(loaders[number::3],)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


# Loaders that fill all of their regions, more than fit, under a limit that makes the budget small.
_FULL = """
import json, re, resource, sys, time
import forebay

def kib(field):
    with open("/proc/self/status") as status:
        return int(re.search(field + r":\\s+(\\d+) kB", status.read())[1])

forebay.Loader
limit = (kib("VmSize") << 10) + (900 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
options = {"strategy": forebay.Strategy(batch_buffers=12), "order": "shuffle", "expected_epochs": 100, "world": "single"}
loaders = [forebay.Loader(sys.argv[1], 4, **options) for _ in range(12)]
found = {
    "budget": loaders[0].config.memory.budget_bytes,
    "regions": sum(one.config.memory.region_bytes for one in loaders),
    "lent": sum(one.config.memory.on_loan for one in loaders),
    "shared": [],
}
for one in loaders:
    for _ in one:
        pass
    # What it reads ahead fills its buffers.
    while one.config.now.touched_bytes < 12 * 4 << 20:
        time.sleep(0.01)
    found["shared"].append(kib("RssShmem") << 10)
print(json.dumps(found))
"""


def test_shared_memory_stays_within_the_budget(path):
    done = run_python(_FULL, path, environment={"MALLOC_ARENA_MAX": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lent"] > 0
    assert found["regions"] > found["budget"]
    # A first look at a shared region touches a page or two of its control part.
    assert max(found["shared"]) <= found["budget"] + (1 << 20)
    assert max(found["shared"]) > found["budget"] // 2
