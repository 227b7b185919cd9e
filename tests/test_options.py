"""Options: where values come from, what they may be, what the errors say."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import forebay
from forebay.options import OPTIONS, parse_bytes, per_rank_batch, resolve


def test_the_argument_counts_before_the_environment_before_the_file_before_the_default():
    Path("forebay.toml").write_text("seed = 3\n")
    assert resolve({"seed": 1}, {"FOREBAY_SEED": "2"})["seed"] == 1
    assert resolve({"seed": None}, {"FOREBAY_SEED": "2"})["seed"] == 2
    assert resolve({"seed": None}, {})["seed"] == 3
    Path("forebay.toml").unlink()
    assert resolve({"seed": None}, {})["seed"] == 0


def test_origins_name_every_value_that_is_no_default():
    Path("other.toml").write_text('memory = "1GiB"\n')
    found = resolve(
        {"seed": 1, "last": None, "memory": None, "name": None},
        {"FOREBAY_CONFIG": "other.toml", "FOREBAY_LAST": "drop"},
    )
    assert found.origins == {"seed": "seed=", "last": "FOREBAY_LAST", "memory": "other.toml: memory"}
    assert found["memory"] == 2**30


@pytest.mark.parametrize(
    ("name", "meant"),
    [("FOREBAY_STRATEGYY", "STRATEGY"), ("FOREBAY_CACHE", "CACHE_DIR"), ("FOREBAY_NODES", "NODE")],
)
def test_a_variable_that_is_nearly_one_of_ours_is_a_warning(name, meant):
    with pytest.warns(RuntimeWarning, match=rf"variable {name} means nothing; is FOREBAY_{meant} meant\?"):
        resolve({"order": None}, {name: "x"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve({"order": None}, {"FOREBAY_BENCH_DIR": "x", "FOREBAY_LONG_TESTS": "1", "HOME": "x"})


def test_every_option_can_stand_in_the_environment():
    texts = {
        "batch_size": ("8", 8),
        "order": ("shuffle", "shuffle"),
        "name": ("validation", "validation"),
        "seed": ("7", 7),
        "world": ("single", "single"),
        "strategy": ("pread", forebay.Strategy(access="pread")),
        "memory": ("64MiB", 64 * 2**20),
        "epochs": ("3", 3),
        "last": ("short", "short"),
        "bad_samples": ("raise", "raise"),
        "checksums": ("true", True),
        "timeout": ("12.5", 12.5),
        "database": ("train", "train"),
        "schema": ("raw", "raw"),
        "format": ("raw", "raw"),
    }
    environment = {f"FOREBAY_{name.upper()}": text for name, (text, _) in texts.items()}
    found = resolve(dict.fromkeys(texts), environment)
    assert {name: found[name] for name in texts} == {name: value for name, (_, value) in texts.items()}
    assert {option.name for option in OPTIONS} - texts.keys() == {"global_batch", "tiers"}


def test_orders_and_strategies_with_parameters_have_a_text_form():
    found = resolve(
        {"order": None, "strategy": None},
        {
            "FOREBAY_ORDER": "group:samples=512,window=4,lanes=16",
            "FOREBAY_STRATEGY": "forebay:access=io_uring,readers=3,direct=true",
        },
    )
    assert found["order"] == forebay.Group(samples=512, window=4, lanes=16)
    assert found["strategy"] == forebay.Strategy(access="io_uring", readers=3, direct=True)
    found = resolve({"strategy": None}, {"FOREBAY_STRATEGY": "pread:readers=per_node,coalesce=7"})
    assert found["strategy"] == forebay.Strategy(access="pread", readers="per_node", coalesce=7)


def test_orders_and_strategies_can_be_tables_of_the_file():
    Path("forebay.toml").write_text(
        '[order]\nkind = "group"\nwindow = 2\n[strategy]\nname = "pread"\nreaders = 2\n'
    )
    found = resolve({"order": None, "strategy": None}, {})
    assert found["order"] == forebay.Group(window=2)
    assert found["strategy"] == forebay.Strategy(access="pread", readers=2)


def test_of_two_batch_sizes_the_one_from_the_stronger_place_counts():
    found = resolve({"batch_size": 32, "global_batch": None}, {"FOREBAY_GLOBAL_BATCH": "64"})
    assert (found["batch_size"], found["global_batch"]) == (32, None)
    found = resolve({"batch_size": None, "global_batch": 64}, {"FOREBAY_BATCH_SIZE": "32"})
    assert per_rank_batch(found, 4) == 16
    with pytest.raises(
        forebay.OptionError, match=r"batch_size= and global_batch=: give one of them, not both"
    ):
        resolve({"batch_size": 1, "global_batch": 4}, {})


def test_a_global_batch_that_cannot_be_shared_names_those_that_can():
    found = resolve({"batch_size": None, "global_batch": 10}, {})
    with pytest.raises(
        forebay.OptionError, match=r"10 cannot be shared out evenly between 4 ranks\nhint: .*: 8, 12"
    ):
        per_rank_batch(found, 4)
    with pytest.raises(forebay.OptionError, match=r"neither batch_size= nor global_batch="):
        per_rank_batch(resolve({"batch_size": None, "global_batch": None}, {}), 4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "order",
            "random",
            r"order=: expected one of sequential, contiguous, shuffle, group, forebay\.Group.*'random'",
        ),
        (
            "strategy",
            "lmb",
            r"strategy=: expected one of forebay, mmap, pread, io_uring, lmdb, .*; found 'lmb'",
        ),
        ("last", "pad", r"last=: expected one of wrap, drop, short, carry; found 'pad'"),
        ("world", "mpich", r"world=: expected one of auto, mpi, torchrun, slurm, single; found 'mpich'"),
        ("schema", "jpeg", r"schema=: expected one of auto, raw, .*; found 'jpeg'"),
        ("batch_size", 0, r"batch_size=: expected an integer of at least 1, found 0"),
        ("batch_size", 2.5, r"batch_size=: expected an integer, found 2\.5"),
        ("batch_size", True, r"batch_size=: expected an integer, found True"),
        ("seed", -1, r"seed=: expected an integer from 0 to 2\*\*64 - 1, found -1"),
        ("memory", "2 giga", r"memory=: expected a positive number of bytes, found '2 giga'\nhint: .*2GiB"),
        ("memory", 2**64, r"memory=: expected at most 9223372036854775807 bytes, found 18446744073709551616"),
        ("memory", "1e9 GiB", r"memory=: expected a positive number of bytes"),
        (
            "memory",
            "99999999TiB",
            r"memory=: expected at most 9223372036854775807 bytes, found '99999999TiB'",
        ),
        (
            "batch_size",
            2**64,
            r"batch_size=: expected an integer of at most 4294967295, found 18446744073709551616",
        ),
        ("epochs", 2**64, r"epochs=: expected an integer of at most 4294967295"),
        (
            "strategy",
            {"batch_buffers": 2**40},
            r"Strategy\(batch_buffers=\): expected an integer of at most 4294967295",
        ),
        ("seed", 2**64, r"seed=: expected an integer from 0 to 2\*\*64 - 1, found 18446744073709551616"),
        ("timeout", 1e300, r"timeout=: expected at most 1000000000 seconds, found 1e\+300"),
        ("memory", 0, r"memory=: expected a positive number of bytes, found 0"),
        ("timeout", 0, r"timeout=: expected a positive number of seconds, found 0"),
        ("timeout", float("nan"), r"timeout=: expected a positive number of seconds, found nan"),
        ("name", "", r"name=: expected a non-empty string, found ''"),
        ("bad_samples", "drop", r"bad_samples=: expected one of raise, skip; found 'drop'"),
        ("tiers", ["/scratch:1GiB"], r"tiers=: storage tiers are not in this version"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_valid(name, value, message):
    with pytest.raises(forebay.OptionError, match=message):
        resolve({name: value}, {})


def test_an_error_begins_with_the_place_of_the_value():
    with pytest.raises(forebay.OptionError, match=r"^FOREBAY_SEED: expected an integer, found 'x'"):
        resolve({"seed": None}, {"FOREBAY_SEED": "x"})
    Path("forebay.toml").write_text('last = "never"\n')
    with pytest.raises(forebay.OptionError, match=r"^forebay\.toml: last: expected one of"):
        resolve({"last": None}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize = 3\n", r"configuration file c\.toml: expected one of batch_size, .*; found 'batchsize'"),
        ("batch_size = \n", r"configuration file c\.toml: not valid TOML: .*line 1"),
        (
            "[order]\nkind = 'group'\nlane = 3\n",
            r"c\.toml: order: expected one of samples, window, lanes; found 'lane'",
        ),
        (
            "[strategy]\nacces = 'pread'\n",
            r"c\.toml: strategy: expected one of name, locate, access, .*; found 'acces'",
        ),
    ],
)
def test_a_wrong_configuration_file_is_told(text, message):
    Path("c.toml").write_text(text)
    with pytest.raises(forebay.OptionError, match=message):
        resolve({"order": None, "strategy": None}, {"FOREBAY_CONFIG": "c.toml"})


def test_a_configuration_file_that_was_asked_for_must_be_there():
    with pytest.raises(
        forebay.OptionError, match=r"FOREBAY_CONFIG: there is no configuration file gone\.toml"
    ):
        resolve({}, {"FOREBAY_CONFIG": "gone.toml"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("2GiB", 2 * 2**30),
        ("2G", 2 * 2**30),
        ("2g", 2 * 2**30),
        ("512K", 512 * 2**10),
        ("2GB", 2 * 10**9),
        ("1.5 KiB", 1536),
        ("500 MB", 500_000_000),
        ("3tib", 3 * 2**40),
        ("7B", 7),
        (12, 12),
    ],
)
def test_bytes_are_read_with_binary_and_decimal_units(text, size):
    assert parse_bytes("memory=", text) == size


def test_a_group_and_a_strategy_are_checked_where_they_are_made():
    with pytest.raises(
        forebay.OptionError, match=r"Group\(window=\): expected an integer of at least 1, found 0"
    ):
        forebay.Group(window=0)
    with pytest.raises(
        forebay.OptionError,
        match=r"Strategy\(access=\): expected one of auto, mmap, pread, io_uring; found 'aio'",
    ):
        forebay.Strategy(access="aio")
    with pytest.raises(
        forebay.OptionError, match=r"Strategy\(locate=\): expected one of index, cursor.*; found 'guess'"
    ):
        forebay.Strategy(locate="guess")
    with pytest.raises(
        forebay.OptionError, match=r"a cursor walks through a mapping\nhint: add access='mmap'"
    ):
        forebay.Strategy(locate="cursor")
    with pytest.raises(forebay.OptionError, match=r"a mapping always goes through the page cache"):
        forebay.Strategy(access="mmap", direct=True)
    with pytest.raises(AttributeError):
        forebay.Group(samples=3).samples = 4


def test_every_option_stands_in_the_page_with_its_variable():
    page = (Path(__file__).parent.parent / "docs/options.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(FOREBAY_\w+)` \|", page, flags=re.MULTILINE)
    assert rows == [(option.name, option.variable) for option in OPTIONS]
