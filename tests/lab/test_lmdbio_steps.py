"""LMDBIO's steps on one node deliver what the plain reader does, through jumps and deaths."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import forebay
import support
from forebay.config import Index
from forebay_lab import PRESETS
from support.ranks import plain, work
from support.ranks.pool import Killed

STRATEGIES = ["lmdb", *(name for name in PRESETS if name.startswith("lmm"))]
ROOTED = STRATEGIES[1:]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Records on several hundred leaf pages, inline and in overflow pages, and two non-samples."""
    rng = random.Random(7)
    values = [support.record(number, rng.choice([200, 700, 1900, 5000])) for number in range(1200)]
    return str(support.write_lmdb(tmp_path_factory.mktemp("several") / "several.lmdb", values))


def fits(preset, order):
    """Return whether a strategy can deliver an order."""
    return order == "sequential" or PRESETS[preset]["locate"] != "handoff"


@pytest.mark.sweep(together=2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("order", ["sequential", "contiguous"])
@pytest.mark.parametrize("preset", STRATEGIES)
def test_every_lmdbio_step_delivers_what_the_plain_reader_does(pool, mixed, preset, order, ranks, says):
    if not fits(preset, order):
        with says(forebay.OptionError):
            work.make(mixed, {}, {"batch_size": 3, "order": order, "strategy": preset})
        return
    last = random.Random(f"{preset} {order} {ranks}").choice(["fill", "drop", "partial"])
    options = {"batch_size": 3, "order": order, "last_batch": last}
    expected = plain.expected(mixed, options, ranks, 3, last)
    found = pool.run(ranks, work.deliver, path=mixed, options={**options, "strategy": preset}, epochs=3)
    assert [plain.together(found, epoch) for epoch in range(3)] == expected


@pytest.mark.parametrize("preset", ROOTED)
def test_a_circular_database_goes_on_where_the_epoch_before_ended(pool, mixed, preset):
    options = {"batch_size": 4, "order": "sequential", "last_batch": "carry"}
    expected = plain.expected(mixed, options, 3, 4, "carry")
    found = pool.run(3, work.deliver, path=mixed, options={**options, "strategy": preset}, epochs=4)
    assert [plain.together(found, epoch) for epoch in range(4)] == expected


@pytest.mark.parametrize("coalesce", [1, 3, 7, None])
@pytest.mark.parametrize("locate", [{"locate": "cursor", "access": "mmap"}, {"access": "pread"}])
def test_reads_may_span_any_number_of_steps(pool, several, locate, coalesce):
    options = {"batch_size": 5, "order": "sequential", "node_memory": "4MiB"}
    expected = plain_steps(1200, 5, 3)
    for readers in ("per_node", 2, 3):
        strategy = {**locate, "readers": readers, "coalesce": coalesce, "batch_buffers": 2}
        found = pool.run(3, work.deliver, path=several, options={**options, "strategy": strategy}, epochs=2)
        assert [plain.together(found, epoch) for epoch in range(2)] == [expected] * 2


def plain_steps(samples, batch, ranks):
    """The steps of an epoch of the sequential order that fits, by rank."""
    starts = range(0, samples, batch * ranks)
    return [
        [list(range(start + rank * batch, start + (rank + 1) * batch)) for rank in range(ranks)]
        for start in starts
    ]


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("preset", ROOTED)
def test_ranks_break_jump_and_come_back_as_they_like(pool, mixed, preset, seed):
    rng = random.Random(f"{preset} {seed}")
    ranks = rng.choice([2, 3, 5])
    orders = [order for order in ("sequential", "contiguous") if fits(preset, order)]
    options = {"batch_size": 3, "order": rng.choice(orders), "strategy": preset}
    expected = plain.expected(mixed, options, ranks, 9)
    epochs = []
    for _ in range(6):
        epochs.append(rng.choice([None, None, rng.randrange(9)]) if epochs else None)
    scripts = [
        [
            {
                "epoch": epoch,
                "stop": rng.choice([None, None, 1, 2, 4]),
                "keep": rng.choice([0, 0, 2]),
                "pause": rng.choice([0, 0, 0.002]),
            }
            for epoch in epochs
        ]
        for _ in range(ranks)
    ]
    found = pool.run(ranks, work.act, lambda rank: {"actions": scripts[rank]}, path=mixed, options=options)
    for rank, passes in enumerate(found):
        for epoch, _, steps in passes:
            assert steps == [step[rank] for step in expected[epoch % len(expected)][: len(steps)]]


@pytest.mark.parametrize("preset", ROOTED)
def test_a_state_is_resumed_on_another_lmdbio_step_and_another_number_of_ranks(pool, mixed, preset):
    options = {"order": "sequential", "strategy": preset}
    one = pool.run(3, work.deliver, path=mixed, options={**options, "batch_size": 4}, stop=5)
    state = one[0]["state"]
    other = {**options, "batch_size": 6, "strategy": "lmdb"}
    rest = pool.run(2, work.deliver, path=mixed, options=other, state=state)
    whole = plain.expected(mixed, {"batch_size": 12, "order": "sequential"}, 1, 1)[0]
    joined = plain.joined(plain.together(one, 0)) + plain.joined(plain.together(rest, 0))
    assert joined == plain.joined(whole)


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("leaves", [0, 1])
@pytest.mark.parametrize("preset", ROOTED)
def test_the_root_moves_when_its_rank_says_goodbye(pool, several, preset, leaves):
    options = {"batch_size": 5, "order": "sequential", "node_memory": "4MiB", "strategy": preset}
    each = lambda rank: {"stop": 3 if rank == leaves else None, "epochs": 2}  # noqa: E731
    found = pool.run(3, work.deliver, each, path=several, options=options)
    expected = plain_steps(1200, 5, 3)
    for rank, one in enumerate(found):
        steps = [step[rank] for step in expected]
        assert one["found"] == ([steps[:3]] if rank == leaves else [steps, steps])


@pytest.mark.sweep(together=1)
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("preset", ROOTED)
@pytest.mark.full
def test_the_death_of_any_rank_is_told_to_the_others(pool, several, preset, victim):
    options = {"batch_size": 5, "order": "sequential", "node_memory": "4MiB", "strategy": preset}
    ranks = pool.begin(3, work.walk, path=several, options=options)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[victim].kill()
    for number, outcome in enumerate(pool.outcomes(ranks)):
        if number == victim:
            assert isinstance(outcome, Killed)
        else:
            assert f"rank {victim}" in outcome["message"]
            assert outcome["memory"] == []


@pytest.mark.parametrize("preset", ROOTED)
def test_the_roots_alone_touch_storage_and_read_each_page_once(pool, several, preset):
    options = {"batch_size": 5, "order": "sequential", "strategy": preset, "expected_epochs": 1}
    found = pool.run(3, work.deliver, path=several, options=options)
    fetched = [one["stats"]["read_bytes"] + one["stats"]["mmap_bytes"] for one in found]
    asked = sum(one["stats"]["requested_bytes"] for one in found)
    assert found[0]["config"].reading.readers == 1
    # When the rank of the root is done first, the rest is read by the next one.
    assert fetched[0] >= 0.9 * asked
    assert asked <= sum(fetched) <= (Path(several) / "data.mdb").stat().st_size
    assert [one["stats"]["unstaged_bytes"] for one in found] == [0, 0, 0]


@pytest.mark.parametrize("preset", ["lmm"])
def test_the_root_alone_walks_through_the_container(pool, several, preset):
    found = pool.run(
        3, work.deliver, path=several, options={"batch_size": 5, "order": "sequential", "strategy": preset}
    )
    seeks = [one["stats"]["locate_seconds"] for one in found]
    assert seeks[0] > 0
    reading = config(several, preset).reading
    assert (reading.io_mode, reading.roots, reading.readers) == ("cursor_walk", True, 1)


def test_what_the_root_cannot_find_comes_from_the_index(pool, several, tmp_path):
    options = {"batch_size": 5, "order": "sequential", "strategy": "lmm"}
    config(several, "lmm")  # keeps the index
    file = Path(several) / "data.mdb"
    whole, status = file.read_bytes(), file.stat()
    # The root of the tree, from the meta page of the last transaction.
    metas = [(read_word(whole, page * 4096 + 144), read_word(whole, page * 4096 + 128)) for page in (0, 1)]
    root = max(metas)[1]
    damaged = whole[: root * 4096] + bytes(4096) + whole[(root + 1) * 4096 :]
    try:
        replace(file, damaged, status)
        found = pool.run(2, work.deliver, path=several, options=options)
        with work.make(several, {}, options) as loader:
            next(iter(loader))
            fallbacks = loader.config.fallbacks
    finally:
        replace(file, whole, status)
    assert plain.joined(plain.together(found, 0)) == plain.joined(plain_steps(1200, 5, 2))
    assert [one.wanted for one in fallbacks] == ["walk"]


def read_word(file, offset):
    return int.from_bytes(file[offset : offset + 8], "little")


def replace(file, contents, status):
    """Write other contents into a file in a way that its size and time do not tell."""
    file.write_bytes(contents)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_scan_finds_all_records_once_and_keeps_nothing(several, tmp_path):
    with work.make(several, {}, {"batch_size": 4, "order": "sequential", "strategy": "lmm-dio"}) as loader:
        # It is over when the loader is made.
        assert loader.stats()["locate_seconds"] > 0
        assert loader.config.index == Index(source="scan", scanning_node="this")
        steps = [work.check(several, batch) for batch in loader]
    assert [number for step in steps for number in step] == list(range(1200))
    assert not list((tmp_path / "cache").iterdir())


def test_a_scan_that_meets_damage_is_an_error_that_names_the_page(tmp_path, says):
    path = support.write_lmdb(tmp_path / "x.lmdb", [support.record(number, 500) for number in range(300)])
    whole = bytearray((path / "data.mdb").read_bytes())
    metas = [(read_word(whole, page * 4096 + 144), read_word(whole, page * 4096 + 128)) for page in (0, 1)]
    root = max(metas)[1]
    whole[root * 4096 + 10 : root * 4096 + 12] = b"\xff\xff"
    (path / "data.mdb").write_bytes(whole)
    with says(forebay.FormatError, "LMDB", root, root * 4096 + 10):
        work.make(str(path), {}, {"batch_size": 4, "order": "sequential", "strategy": "lmm-dio"})


def config(path, strategy):
    with work.make(path, {}, {"batch_size": 4, "order": "sequential", "strategy": strategy}) as loader:
        return loader.config


def test_roots_are_two_where_a_node_has_more_than_sixteen_ranks(pool, even):
    options = {"batch_size": 2, "order": "sequential", "strategy": "lmm"}
    found = pool.run(17, work.deliver, path=even, options=options, epochs=2)
    assert found[0]["config"].reading.readers == 2
    assert [plain.together(found, epoch) for epoch in range(2)] == plain.expected(even, options, 17, 2)


def test_one_node_has_nobody_to_take_turns_with(pool, several, says):
    options = {"batch_size": 5, "order": "sequential", "strategy": "lmm-dio-prov-coal-stag"}
    found = pool.run(2, work.deliver, path=several, options=options)
    assert [one["stats"]["stagger_tokens"] for one in found] == [0, 0]
    wanted = [one.wanted for one in config(several, "lmm-dio-prov-coal-stag").fallbacks]
    assert wanted == ["recipe", "stagger"]
    with work.make(several, {}, {"batch_size": 4}) as loader:
        with says(forebay.OptionError):
            loader.set_stagger(2)
        with says(forebay.OptionError, "set_stagger", 1, 0):
            loader.set_stagger(0)


def test_options_of_the_rungs_are_checked(says):
    with says(forebay.OptionError, "Strategy(stagger=)", 1):
        forebay.Strategy(stagger="some")
    with says(forebay.OptionError, "Strategy(coalesce=)", 1):
        forebay.Strategy(coalesce=0)
    with says(forebay.OptionError, "Strategy(readers=)", 1):
        forebay.Strategy(readers="all")
