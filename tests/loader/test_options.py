"""Options: where values come from, what they may be, what the errors say."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import typing
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

import forebay
import forebay_lab
import support
from forebay import _renamed
from forebay.loader import LoaderOptions
from forebay.options import OPTIONS, Tier, parse_bytes, per_rank_batch, resolve


def test_the_argument_counts_before_the_environment_before_the_file_before_the_default():
    Path("forebay.toml").write_text("seed = 3\n")
    assert resolve({"seed": 1}, {"FOREBAY_SEED": "2"})["seed"] == 1
    assert resolve({"seed": None}, {"FOREBAY_SEED": "2"})["seed"] == 2
    assert resolve({"seed": None}, {})["seed"] == 3
    Path("forebay.toml").unlink()
    assert resolve({"seed": None}, {})["seed"] == 0


def test_origins_name_every_value_that_is_no_default():
    Path("other.toml").write_text('node_memory = "1GiB"\n')
    found = resolve(
        {"seed": 1, "last_batch": None, "node_memory": None, "name": None},
        {"FOREBAY_CONFIG": "other.toml", "FOREBAY_LAST_BATCH": "drop"},
    )
    assert found.origins == {
        "seed": "seed=",
        "last_batch": "FOREBAY_LAST_BATCH",
        "node_memory": "other.toml: node_memory",
    }
    assert found["node_memory"] == 2**30


@pytest.mark.parametrize(
    ("name", "meant"),
    [("FOREBAY_STRATEGYY", "STRATEGY"), ("FOREBAY_CACHE", "CACHE_DIR"), ("FOREBAY_NODES", "NODE")],
)
def test_a_variable_that_is_nearly_one_of_ours_is_a_warning(name, meant, says):
    with says(RuntimeWarning, name, f"FOREBAY_{meant}"):
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
        "node_memory": ("64MiB", 64 * 2**20),
        "expected_epochs": ("3", 3),
        "last_batch": ("partial", "partial"),
        "bad_samples": ("raise", "raise"),
        "checksums": ("true", True),
        "workers": ("4", 4),
        "worker_kind": ("process", "process"),
        "prefetch": ("0", 0),
        "collate": ("image=stack,boxes=ragged,*=list", {"image": "stack", "boxes": "ragged", ...: "list"}),
        "timeout": ("12.5", 12.5),
        "database": ("train", "train"),
        "schema": ("raw", "raw"),
        "format": ("raw", "raw"),
        "tiers": (
            "/dev/shm:8GiB:keep,/scratch:200GB",
            (Tier(path="/dev/shm", size=8 * 2**30, keep=True), Tier(path="/scratch", size=200 * 10**9)),
        ),
        "store": ("8GiB:on_lost=source", forebay.Store(size=8 * 2**30, on_lost="source")),
    }
    environment = {f"FOREBAY_{name.upper()}": text for name, (text, _) in texts.items()}
    found = resolve(dict.fromkeys(texts), environment)
    assert {name: found[name] for name in texts} == {name: value for name, (_, value) in texts.items()}
    assert {option.name for option in OPTIONS} - texts.keys() == {"global_batch"}


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


@pytest.mark.parametrize(
    ("value", "toml", "store"),
    [
        ("auto", '"auto"', forebay.Store()),
        ("8GiB", '"8GiB"', forebay.Store(size=8 * 2**30)),
        (8 << 30, str(8 << 30), forebay.Store(size="8GiB")),
        ("none", '"none"', None),
        ("auto:on_lost=source", '{on_lost = "source"}', forebay.Store(on_lost="source")),
        (
            "8GiB:requests_per_node=2,request_bytes=1MiB",
            '{size = "8GiB", requests_per_node = 2, request_bytes = "1MiB"}',
            forebay.Store(size="8GiB", requests_per_node=2, request_bytes=2**20),
        ),
    ],
)
def test_a_store_has_a_text_form_and_can_be_a_table_of_the_file(value, toml, store):
    assert resolve({"store": value}, {})["store"] == store
    assert resolve({"store": store}, {})["store"] == store
    assert resolve({"store": None}, {"FOREBAY_STORE": str(value)})["store"] == store
    Path("forebay.toml").write_text(f"store = {toml}\n")
    assert resolve({"store": None}, {})["store"] == store
    assert resolve({"store": "none"}, {})["store"] is None


def test_of_two_batch_sizes_the_one_from_the_stronger_place_counts(says):
    found = resolve({"batch_size": 32, "global_batch": None}, {"FOREBAY_GLOBAL_BATCH": "64"})
    assert (found["batch_size"], found["global_batch"]) == (32, None)
    found = resolve({"batch_size": None, "global_batch": 64}, {"FOREBAY_BATCH_SIZE": "32"})
    assert per_rank_batch(found, 4) == 16
    with says(forebay.OptionError, "batch_size=", "global_batch="):
        resolve({"batch_size": 1, "global_batch": 4}, {})


def test_a_global_batch_that_cannot_be_shared_names_those_that_can(says):
    found = resolve({"batch_size": None, "global_batch": 10}, {})
    with says(forebay.OptionError, 10, 4, 8, 12):
        per_rank_batch(found, 4)
    with says(forebay.OptionError, "batch_size=", "global_batch="):
        per_rank_batch(resolve({"batch_size": None, "global_batch": None}, {}), 4)


@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        (
            "order",
            "random",
            ("order=", "random"),
        ),
        (
            "strategy",
            "lmb",
            ("strategy=", "io_uring", "lmb"),
        ),
        ("last_batch", "pad", ("last_batch=", "pad")),
        ("world", "mpich", ("world=", "mpich")),
        ("schema", "jpeg", ("schema=", "jpeg")),
        ("batch_size", 0, ("batch_size=", 1, 0)),
        ("batch_size", 2.5, ("batch_size=", "2.5")),
        ("batch_size", True, ("batch_size=",)),
        ("seed", -1, ("seed=", 0, 2, 1, -1)),
        ("node_memory", "2 giga", ("node_memory=", "2 giga")),
        ("node_memory", 2**64, ("node_memory=", 9223372036854775807, 18446744073709551616)),
        ("node_memory", "1e9 GiB", ("node_memory=",)),
        (
            "node_memory",
            "99999999TiB",
            ("node_memory=", 9223372036854775807, "99999999TiB"),
        ),
        (
            "batch_size",
            2**64,
            ("batch_size=", 4294967295, 18446744073709551616),
        ),
        ("expected_epochs", 2**64, ("expected_epochs=", 4294967295)),
        (
            "strategy",
            {"batch_buffers": 2**40},
            ("Strategy(batch_buffers=)", 64),
        ),
        ("seed", 2**64, ("seed=", 0, 2, 1, 18446744073709551616)),
        ("timeout", 1e300, ("timeout=", 1000000000, 300)),
        ("node_memory", 0, ("node_memory=", 0)),
        ("timeout", 0, ("timeout=", 0)),
        ("timeout", float("nan"), ("timeout=",)),
        ("name", "", ("name=",)),
        ("bad_samples", "drop", ("bad_samples=", "drop")),
        ("tiers", 5, ("tiers=", 5, "8GiB", "200GiB")),
        ("tiers", ["/scratch"], ("tiers=", "/scratch", "8GiB", "200GiB")),
        ("tiers", ["/scratch:0"], ("tiers=", "/scratch:0", 0, "2GiB")),
        ("tiers", ["/scratch:1GiB:forever"], ("tiers=", "forever", "keep")),
        ("tiers", [{"path": "/scratch", "size": "1GiB", "kept": True}], ("tiers=", "kept")),
        ("tiers", ["/scratch:1023KiB"], ("tiers=", "/scratch:1023KiB", "1MiB")),
        ("tiers", [":1GiB"], ("tiers=", ":1GiB")),
        ("tiers", [{"path": "/\udcff", "size": "1GiB"}], ("tiers=",)),
        ("tiers", [{"path": "/scratch", "size": "1GiB", "keep": 1}], ("tiers=", "Tier(keep=)", 1)),
        ("order", forebay.Group, ("order=", "Group")),
        ("store", "much", ("store=", "much")),
        ("store", "1KiB", ("store=", "1MiB", "1KiB")),
        ("store", True, ("store=", True)),
        ("store", "auto:fetch_bytes=1MiB", ("store=", "request_bytes", "fetch_bytes")),
        ("store", {"size": "1KiB"}, ("Store(size=)", "1MiB", 1024)),
        ("store", "auto:size=8GiB", ("store=", "before the colon", "auto:size=8GiB")),
    ],
)
def test_a_wrong_value_is_told_with_what_is_valid(name, value, values, says):
    with says(forebay.OptionError, *values):
        resolve({name: value}, {})


@pytest.mark.parametrize("name", _renamed.OPTIONS)
def test_the_old_name_of_an_option_raises_with_the_name_of_today(name, says):
    with says(forebay.OptionError, f"{name}="):
        forebay.Loader("x.npy", 4, **{name: 2})
    Path("forebay.toml").write_text(f"{name} = 2\n")
    with says(forebay.OptionError, "forebay.toml", name):
        resolve({"seed": None}, {})


@pytest.mark.parametrize("name", _renamed.VARIABLES)
def test_the_old_name_of_a_variable_raises_with_the_name_of_today(name, says):
    with says(forebay.OptionError, name):
        resolve({}, {name: "2"})


@pytest.mark.parametrize(("option", "old"), _renamed.VALUES)
def test_the_old_name_of_a_value_raises_with_the_name_of_today(option, old, says):
    with says(forebay.OptionError, old, _renamed.VALUES[option, old]):
        resolve({option: old}, {})


@pytest.mark.parametrize("name", _renamed.PARAMETERS)
def test_a_parameter_that_strategies_had_raises_with_what_to_write_today(name, says):
    for strategy in (forebay.Strategy, forebay_lab.Strategy):
        with says(forebay.OptionError, f"{name}=", _renamed.PARAMETERS[name]):
            strategy(**{name: 1})
    with says(forebay.OptionError, f"{name}=", _renamed.PARAMETERS[name]):
        resolve({"strategy": None}, {"FOREBAY_STRATEGY": f"forebay:{name}=1"})
    Path("forebay.toml").write_text(f"[strategy]\n{name} = 1\n")
    with says(forebay.OptionError, "forebay.toml", f"{name}=", _renamed.PARAMETERS[name]):
        resolve({"strategy": None}, {})


def test_a_strategy_has_the_signature_of_its_parameters():
    for strategy in (forebay.Strategy, forebay_lab.Strategy):
        parameters = inspect.signature(strategy).parameters
        assert set(parameters) == {field.name for field in fields(strategy)}
    with pytest.raises(TypeError, match="reader"):
        forebay.Strategy(reader=2)


def test_every_old_name_names_what_there_is_today():
    today = {option.name for option in OPTIONS} | {"transform", "batch_transform"}
    for name, advice in _renamed.OPTIONS.items():
        assert name not in today
        assert set(re.findall(r"(\w+)=", advice)) <= today, advice
    parameters = {field.name for field in fields(forebay.Store)}
    for advice in _renamed.PARAMETERS.values():
        assert set(re.findall(r"(\w+)=", advice)) <= parameters | {"store", "strategy"}, advice
    for variable, advice in _renamed.VARIABLES.items():
        named = set(re.findall(r"FOREBAY_\w+", advice))
        assert named <= {option.variable for option in OPTIONS}, variable
    assert {f"FOREBAY_{name.upper()}" for name in _renamed.OPTIONS} >= set(_renamed.VARIABLES)


def test_an_error_begins_with_the_place_of_the_value(says):
    with says(forebay.OptionError, "FOREBAY_SEED", "x"):
        resolve({"seed": None}, {"FOREBAY_SEED": "x"})
    Path("forebay.toml").write_text('last_batch = "never"\n')
    with says(forebay.OptionError, "forebay.toml"):
        resolve({"last_batch": None}, {})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batchsize = 3\n", ("c.toml", "batch_size", "batchsize")),
        ("batch_size = \n", ("c.toml", "TOML", 1)),
        (
            "[order]\nkind = 'group'\nlane = 3\n",
            ("c.toml", "lane"),
        ),
        (
            "[strategy]\nacces = 'pread'\n",
            ("c.toml", "acces"),
        ),
    ],
)
def test_a_wrong_configuration_file_is_told(text, values, says):
    Path("c.toml").write_text(text)
    with says(forebay.OptionError, *values):
        resolve({"order": None, "strategy": None}, {"FOREBAY_CONFIG": "c.toml"})


UNSEARCHABLE = """
import os, sys
from forebay.options import resolve
# Before the change of user, after which Python itself may be out of reach.
import forebay.loader, difflib, tomllib
os.chdir(sys.argv[1])
os.setgid(65534), os.setuid(65534)
try:
    print(resolve({"seed": None})["seed"])
except Exception as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_configuration_file_is_looked_for_in_a_directory_that_cannot_be_searched():
    with tempfile.TemporaryDirectory() as path:
        (Path(path) / "forebay.toml").write_text("seed = 3\n")
        for mode, found in ((0o755, "3\n"), (0o700, "0\n")):
            Path(path).chmod(mode)
            done = support.run_python(UNSEARCHABLE, path)
            assert (done.stdout, done.stderr) == (found, "")
        # A file that is there and cannot be read is an error.
        Path(path).chmod(0o755)
        (Path(path) / "forebay.toml").chmod(0o600)
        assert (
            "configuration file forebay.toml: cannot be read" in support.run_python(UNSEARCHABLE, path).stdout
        )


def test_a_configuration_file_that_was_asked_for_must_be_there(says):
    with says(forebay.OptionError, "FOREBAY_CONFIG", "gone.toml"):
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
    assert parse_bytes("node_memory=", text) == size


def test_a_group_and_a_strategy_are_checked_where_they_are_made(says):
    with says(forebay.OptionError, "Group(window=)", 1, 0):
        forebay.Group(window=0)
    with says(forebay.OptionError, "Strategy(access=)", "io_uring", "aio"):
        forebay.Strategy(access="aio")
    with says(forebay.OptionError, "Strategy(locate=)", "guess"):
        forebay_lab.Strategy(locate="guess")
    with says(forebay.OptionError, "access=", "mmap"):
        forebay_lab.Strategy(locate="cursor")
    with says(forebay.OptionError):
        forebay.Strategy(access="mmap", direct=True)
    with pytest.raises(AttributeError):
        forebay.Group(samples=3).samples = 4


def test_every_option_stands_in_the_page_with_its_variable():
    page = (support.ROOT / "docs/options.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(FOREBAY_\w+)` \|", page, flags=re.MULTILINE)
    assert rows == [(option.name, option.variable) for option in OPTIONS]


def test_tests_do_not_see_the_file_of_this_system(system_file):
    assert os.environ["FOREBAY_SYSTEM_CONFIG"] == forebay.options.SYSTEM_CONFIG_FILE == str(system_file)


def test_the_file_of_the_system_comes_last_and_may_define_tiers(says):
    Path("system.toml").write_text(
        'seed = 5\nlast_batch = "partial"\ntiers = [{path = "/scratch", size = "1GiB"}]\n'
    )
    Path("forebay.toml").write_text("seed = 6\n")
    found = resolve(
        {"seed": None, "tiers": None, "last_batch": "drop"}, {"FOREBAY_SYSTEM_CONFIG": "system.toml"}
    )
    assert (found["seed"], found["last_batch"]) == (6, "drop")
    assert found["tiers"] == (Tier(path="/scratch", size=2**30),)
    assert found.origins["tiers"] == "system.toml: tiers"
    assert found.of_system == {"tiers"}
    for given, variable in (([], None), (None, "none")):
        environment = {"FOREBAY_SYSTEM_CONFIG": "system.toml"} | (
            {"FOREBAY_TIERS": variable} if variable else {}
        )
        found = resolve({"tiers": given}, environment)
        assert (found["tiers"], found.of_system) == ((), set())
    with says(forebay.OptionError, "FOREBAY_SYSTEM_CONFIG", "gone.toml"):
        resolve({}, {"FOREBAY_SYSTEM_CONFIG": "gone.toml"})


def test_type_checkers_know_the_options_of_a_loader():
    parameters = list(inspect.signature(forebay.Loader).parameters)
    own = [name for name in parameters if name not in ("dataset", "batch_size", "unknown")]
    assert sorted(typing.get_type_hints(LoaderOptions)) == sorted(own)
