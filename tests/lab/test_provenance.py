"""Provenance: a computed layout is the one that LMDB made, or it is refused."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import h5py
import pytest

import forebay
import forebay_lab
import support
from forebay import cli
from forebay_lab import _native
from support import histories
from support.histories import History

# Seeds per test: a test names a few dozen histories, so that what fails is found quickly.
GROUP = 36
GROUPS = 10 if support.LONG else 4

OTHERS = ("deletion", "overwriting", "random order", "reader", "two writers")


def build_recipe(dataset):
    return _native.build_with_recipe(dataset.native_of(_native))


def declare_recipe(dataset, path):
    return _native.declare_recipe(dataset.native_of(_native), str(path))


def verify_recipe(dataset):
    return _native.verify_recipe(dataset.native_of(_native))


def open_raw(path, history):
    return forebay.open(str(path), database=history.database, schema="raw")


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.full
def test_a_declared_recipe_of_an_insertion_gives_every_offset(tmp_path, group):
    for seed in range(group * GROUP, (group + 1) * GROUP):
        history = histories.generate(seed)
        path = history.write(tmp_path / f"{seed}.lmdb")
        dataset = open_raw(path, history)
        found = declare_recipe(dataset, history.declare(tmp_path))
        assert found["samples"] == len(history.keys), history.name
        assert found["recipe"]["verified"] is False
        # The digest of a scan of all records verifies it.
        verified = verify_recipe(open_raw(path, history))
        assert verified["no_recipe"] is None, history.name
        assert verified["recipe"]["verified"] is True
        shutil.rmtree(path)


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_recipe_of_an_insertion_is_found(tmp_path, group):
    for seed in range(group * GROUP, (group + 1) * GROUP, 3):
        history = histories.generate(seed)
        path = history.write(tmp_path / f"{seed}.lmdb")
        found = build_recipe(open_raw(path, history))
        if history.rhythm is not None:
            assert found["recipe"] is not None, (history.name, found["no_recipe"])
        if (recipe := found["recipe"]) is not None:
            assert recipe["verified"] is True
            if recipe["list_bytes"] == 0 and history.rhythm is not None:
                assert recipe["recipe_bytes"] <= 200
        else:
            assert "no history of insertions" in found["no_recipe"]
        shutil.rmtree(path)


def write_other(history: History, path: Path, kind: str, rng: random.Random) -> None:
    """Write a database that no insertion in the order of the keys leads to."""
    values = history.values()
    numbers = list(range(len(history.keys)))
    if kind == "random order":
        rng.shuffle(numbers)
    with history.open(path) as environment:
        alive = []
        first = 0
        for turn, count in enumerate(history.transactions):
            if kind == "reader" and turn % 7 == 2:
                alive.append(environment.begin())
            if kind == "reader" and turn % 7 == 6:
                alive.pop().abort()
            with environment.begin(write=True) as transaction:
                chosen = numbers[first : first + count]
                for number in chosen:
                    transaction.put(history.keys[number], values[number])
                if kind == "deletion" and turn > 1:
                    # Put again at the end: the same records, another history.
                    for number in rng.sample(numbers[:first], 5):
                        transaction.delete(history.keys[number])
                        transaction.put(history.keys[number], values[number])
                if kind == "overwriting" and turn > 1:
                    for number in rng.sample(numbers[:first], 5):
                        transaction.put(history.keys[number], values[number])
                if kind == "two writers" and turn == 1:
                    # Something else once stood in the file.
                    transaction.put(b"~", b"." * 9000)
                    transaction.delete(b"~")
            first += count
        for reader in alive:
            reader.abort()


def other_history(seed: int) -> History:
    rng = random.Random(1000 + seed)
    every = rng.choice([20, 50, 100])
    count = rng.choice([600, 1000, 1500])
    values = rng.choice(["equal", "large", "mixed", "small"])
    size = histories.sizes(rng, values, count)
    if values == "equal":
        size = [rng.choice([200, 3073])] * count
    return History(
        keys=[b"%08d" % number for number in range(count)],
        sizes=size,
        transactions=[min(every, count - first) for first in range(0, count, every)],
        new_library=rng.random() < 0.3,
        pattern="%08d",
        rhythm=every,
        name=f"{seed} {values} {every}",
    )


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.full
def test_any_other_history_is_refused_and_never_wrong(tmp_path, kind):
    refused = 0
    for seed in range(24):
        rng = random.Random(seed)
        history = other_history(seed)
        path = tmp_path / f"{seed}.lmdb"
        write_other(history, path, kind, rng)
        dataset = open_raw(path, history)
        with pytest.raises(forebay.FormatError, match=path.name):
            declare_and_verify(dataset, history, tmp_path)
        refused += 1
        derived = build_recipe(open_raw(path, history))
        # A recipe is found only where all offsets were compared.
        assert derived["recipe"] is None or derived["recipe"]["verified"], history.name
        shutil.rmtree(path)
    assert refused == 24


def declare_and_verify(dataset, history, directory):
    """Declare the recipe; one that passes sixteen leaves is then compared with all records."""
    declare_recipe(dataset, history.declare(directory))
    found = verify_recipe(dataset)
    if found["no_recipe"]:
        raise forebay.FormatError(found["no_recipe"])


@pytest.fixture(params=["3073 bytes", "mixed"])
def written(request, tmp_path):
    """A history and its database."""
    rng = random.Random(3)
    count = 1500
    size = [3073] * count if request.param == "3073 bytes" else histories.sizes(rng, "mixed", count)
    history = History(
        keys=[b"%08d" % number for number in range(count)],
        sizes=size,
        transactions=[100] * 15,
        pattern="%08d",
        rhythm=100,
    )
    return history, history.write(tmp_path / "written.lmdb")


def read_all(path, strategy):
    with forebay.Loader(
        forebay.open(str(path), schema="raw"),
        batch_size=100,
        order="sequential",
        strategy=forebay_lab.strategy(strategy),
        world="single",
    ) as loader:
        return [bytes(value) for batch in loader for value in batch["data"]], loader.config


def forget_sidecar(found):
    Path(found["sidecar"]).unlink()


def test_samples_come_from_computed_places(written):
    history, path = written
    forget_sidecar(build_recipe(forebay.open(str(path), schema="raw")))
    data, config = read_all(path, "lmm-dio-prov")
    assert data == history.values()
    assert config.index.source == "recipe"
    assert config.index.verified
    # Forebay itself knows of no recipes.
    data, config = read_all(path, "forebay")
    assert data == history.values()
    assert config.index.source == "build"


def test_a_declared_recipe_serves_where_it_is_asked_for(written, tmp_path):
    history, path = written
    declare_recipe(forebay.open(str(path), schema="raw"), history.declare(tmp_path))
    data, config = read_all(path, "lmm-dio-prov")
    assert data == history.values()
    assert (config.index.source, config.index.verified) == ("recipe", False)
    data, config = read_all(path, "forebay")
    assert data == history.values()
    assert (config.index.source, config.fallbacks) == ("build", ())


def test_without_a_recipe_the_index_serves_and_config_says_so(written, snapshot):
    history, path = written
    data, config = read_all(path, "lmm-dio-prov")
    assert data == history.values()
    assert config.index.source == "build"
    (fallback,) = config.fallbacks
    assert fallback.wanted == "recipe"
    snapshot("recipe/missing", fallback.reason)


@pytest.mark.parametrize("field", ["recipe", "digest", "leaf"])
def test_a_recipe_that_no_longer_leads_to_the_file_is_refused_with_what_differs(
    written, field, tmp_path, snapshot
):
    history, path = written
    found = build_recipe(forebay.open(str(path), schema="raw"))
    forget_sidecar(found)
    data = path / "data.mdb"
    times = os.stat(data)  # noqa: PTH116
    if field == "leaf":
        # The same file by its metas, size and time, with another key: what a careless copy leaves.
        # A pattern knows it.
        declare_recipe(forebay.open(str(path), schema="raw"), history.declare(tmp_path))
        data.write_bytes(data.read_bytes().replace(b"00000000", b"0000000/"))
        os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        # The kept recipe with another rhythm, or another digest, and its checksum in order.
        kept = Path(found["recipe"]["path"])
        content = bytearray(kept.read_bytes())
        content[content.index(bytes([0, 100, 0]), 54) + 1 if field == "recipe" else 34] ^= 1
        kept.write_bytes(histories.repaired(content))
    with forebay.Loader(
        forebay.open(str(path), schema="raw"),
        batch_size=100,
        order="sequential",
        strategy=forebay_lab.strategy("lmm-dio-prov"),
        world="single",
    ) as loader:
        config = loader.config
        delivered = [bytes(value) for batch in loader for value in batch["data"]]
    assert delivered == history.values()
    assert config.index.source == "build"
    (fallback,) = config.fallbacks
    assert fallback.wanted == "recipe"
    if field != "recipe":
        replace = {re.escape(str(path)): "DATA", r"\b[0-9a-f]{32}\b": "DIGEST", r"page \d+": "page N"}
        snapshot(f"recipe/refused-{field}", fallback.reason, replace)


def test_a_damaged_recipe_is_passed_over_with_a_warning(written, says):
    _, path = written
    found = build_recipe(forebay.open(str(path), schema="raw"))
    kept = Path(found["recipe"]["path"])
    content = bytearray(kept.read_bytes())
    content[60] ^= 1
    kept.write_bytes(content)
    with (
        says(RuntimeWarning),
        forebay.Loader(
            forebay.open(str(path), schema="raw"),
            batch_size=100,
            strategy=forebay_lab.strategy("lmm-dio-prov"),
            world="single",
        ) as loader,
    ):
        assert [one.wanted for one in loader.config.fallbacks] == ["recipe", "coalesce"]


def command(capsys, *arguments):
    status = cli.main([str(one) for one in arguments])
    found = capsys.readouterr()
    return status, found.out, found.err


def test_recipe_build_tells_what_it_found(capsys, written):
    _, path = written
    status, out, _ = command(capsys, "recipe", "build", path, "--schema", "raw")
    assert status == 0
    assert "1500 records, keys of 8 bytes, values" in out
    assert "a commit every 100 records; LMDB 0.9.11 or later, pages of 4096 bytes" in out
    assert "verified)" in out
    status, out, _ = command(capsys, "recipe", "show", path, "--schema", "raw", "--json")
    recipe = json.loads(out)
    assert (status, recipe["verified"]) == (0, True)
    assert recipe["recipe_bytes"] <= 200


def test_recipe_build_says_why_there_is_none(capsys, tmp_path):
    history = other_history(1)
    path = tmp_path / "other.lmdb"
    write_other(history, path, "random order", random.Random(1))
    status, out, _ = command(capsys, "recipe", "build", path, "--schema", "raw")
    assert status == 0
    assert "none; the sidecar serves instead: " in out
    assert "no history of insertions in the order of the keys leads to this layout" in out


def test_a_dataset_of_another_format_gets_an_index_and_no_recipe(tmp_path):
    path = tmp_path / "arrays.h5"
    with h5py.File(path, "w") as file:
        file["x"] = range(4)
    found = build_recipe(forebay.open(str(path)))
    assert (found["samples"], found["recipe"]) == (4, None)
    assert found["no_recipe"]
    assert Path(found["sidecar"]).exists()


def test_a_declared_recipe_is_unverified_until_forebay_recipe_verify_has_run(capsys, written, tmp_path):
    history, path = written
    recipe = history.declare(tmp_path)
    status, out, _ = command(capsys, "recipe", "declare", path, "--schema", "raw", "--from", recipe)
    assert status == 0
    assert "unverified: run `forebay recipe verify`)" in out
    status, out, _ = command(capsys, "recipe", "declare", path, "--schema", "raw", "--from", recipe, "--json")
    found = json.loads(out)
    # The metas, sixteen leaves and what the schema looks at; never the tree.
    assert found["reads"] <= 16
    assert found["sidecar"] is None
    status, out, _ = command(capsys, "recipe", "verify", path, "--schema", "raw")
    assert status == 0
    assert "; verified)" in out
    status, out, _ = command(capsys, "recipe", "show", path, "--schema", "raw", "--json")
    assert json.loads(out)["verified"] is True


def test_a_wrong_declaration_is_refused_with_what_differs(capsys, written, tmp_path):
    history, path = written
    history.rhythm = 101
    recipe = history.declare(tmp_path)
    status, out, err = command(capsys, "recipe", "declare", path, "--schema", "raw", "--from", recipe)
    assert (status, out) == (1, "")
    assert re.search(r"data\.mdb: the recipe does not lead to this file: .*: expected .*, found ", err)
    assert "hint: the ordinary index serves instead" in err


def test_a_wrong_declaration_that_only_a_digest_finds_is_reported_by_verify(capsys, tmp_path):
    # Two neighbours of other lengths that take as many pages, far from the leaves that are looked
    # at.
    rng = random.Random(5)
    count = 30_000
    history = History(
        keys=[b"%08d" % number for number in range(count)],
        sizes=[rng.randrange(3000, 4000) for _ in range(count)],
        transactions=[1000] * 30,
        pattern="%08d",
        rhythm=1000,
    )
    path = history.write(tmp_path / "long.lmdb")
    history.sizes[1300], history.sizes[1301] = 3001, 3002
    recipe = history.declare(tmp_path)
    assert command(capsys, "recipe", "declare", path, "--schema", "raw", "--from", recipe)[0] == 0
    status, out, err = command(capsys, "recipe", "verify", path, "--schema", "raw")
    assert status == 1
    assert "digest of where all records lie" in err
    assert "recipe" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("keys = 8", "missing field `values`"),
        ("keys = 8\nvalues = 5\ncommits = 7", "unknown field `commits`"),
        ('keys = "%d"\nvalues = 5', "expected one %0Nd"),
        ('keys = "%02d"\nvalues = 5', "too few digits for 1500 records"),
        ('keys = 8\nvalues = {lengths = "gone.txt"}', "cannot read the recipe"),
        ('keys = 8\nvalues = 5\nlibrary = "0.8"', "library"),
        ("keys = 8\nvalues = 5\ncommit_every = 0", "a transaction without records"),
        ("keys = 9000\nvalues = 5", "a key of 9000 bytes"),
        ("keys = 8\nvalues = 5\nrecords = 7", "records: expected 7, found 1500"),
        ("keys = 8\nvalues = 5\npage_bytes = 8192", "length of a page: expected 8192, found 4096"),
        ("keys = 8\nvalues = [[5, 7]]", "lengths of 7 values for 1500 records"),
        ("keys = 8\nvalues = -1", "expected a length from 0 to 4294967295, [[length, count], ...], "),
        ("keys = 8\nvalues = [[5, -1]]", "expected a length from 0 to 4294967295, [[length, count], ...], "),
        (
            'keys = 8\nvalues = {lengths = "/dev/zero"}',
            "/dev/zero: expected a regular file, found something else",
        ),
        ("keys = 8\nvalues = 5\nfirst_commits = [-1]", "expected the records of a commit, or [records, "),
    ],
)
def test_a_statement_that_makes_no_sense_is_refused(capsys, written, tmp_path, line, message):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(line + "\n")
    status, _, err = command(capsys, "recipe", "declare", written[1], "--schema", "raw", "--from", recipe)
    assert status in (1, 2)  # what is not said is wrong use, what does not hold an error
    assert message in err


def test_records_that_are_no_samples_are_left_out(tmp_path):
    history = histories.generate(0)
    history.keys = [b"%08d" % number for number in range(300)] + [b"__len__"]
    history.sizes = [3073] * 300 + [5]
    history.transactions = [100, 100, 101]
    history.database = None
    history.rhythm = None
    history.pattern = None
    path = history.write(tmp_path / "counted.lmdb")
    found = build_recipe(open_raw(path, history))
    assert (found["samples"], found["excluded"]) == (300, {"__len__": 1})
    assert found["recipe"] is not None
    forget_sidecar(found)
    assert len(open_raw(path, history)) == 300
    recipe = history.declare(tmp_path)
    recipe.write_text(recipe.read_text() + "[not_samples]\n__len__ = 300\n")
    declared = declare_recipe(open_raw(path, history), recipe)
    assert (declared["samples"], declared["excluded"]) == (300, {"__len__": 1})


def test_several_files_have_a_recipe_each(tmp_path):
    paths = []
    for seed in (1, 2):
        history = other_history(seed)
        history.new_library = False
        paths.append(str(history.write(tmp_path / f"{seed}.lmdb")))
    found = build_recipe(forebay.open(paths, schema="raw"))
    assert len(found["recipe"]["recipes"]) == 2
    forget_sidecar(found)
    plain = forebay.open(paths, schema="raw")
    assert len(plain) == found["samples"]


@pytest.mark.parametrize("version", ["1.0.0", "1.4.1", "1.8.1", "2.3.0"])
def test_other_releases_of_the_library_put_records_in_the_same_places(tmp_path, version):
    if not os.environ.get("FOREBAY_LONG_TESTS"):
        pytest.skip("installs another release of py-lmdb: `make test-long`")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"lmdb=={version}"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"py-lmdb {version} does not install here: {installed.stderr.strip().splitlines()[-1]}")
    code = (
        f"import sys; sys.path.insert(0, {str(support.TESTS / 'support')!r}); import histories, pathlib\n"
        "for seed in map(int, sys.argv[2:]):\n"
        "    history = histories.generate(seed)\n"
        "    history.new_library = False\n"
        "    history.write(pathlib.Path(sys.argv[1]) / f'{seed}.lmdb')\n"
    )
    seeds = list(range(0, 360, 5))
    subprocess.run([python, "-c", code, tmp_path, *map(str, seeds)], check=True)
    for seed in seeds:
        history = histories.generate(seed)
        dataset = open_raw(tmp_path / f"{seed}.lmdb", history)
        declare_recipe(dataset, history.declare(tmp_path))
        verified = verify_recipe(dataset)
        assert verified["no_recipe"] is None, (version, history.name)


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """Programs that write with any page size, one per library: built from py-lmdb's sources."""
    if not os.environ.get("FOREBAY_LONG_TESTS"):
        pytest.skip("downloads and builds the sources of LMDB: `make test-long`")
    directory = tmp_path_factory.mktemp("sources")
    fetch = [
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
    ]
    fetched = subprocess.run(
        [sys.executable, *fetch, "-d", directory, "lmdb==3.0.0"], capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"the sources of py-lmdb cannot be had: {fetched.stderr.strip().splitlines()[-1]}")
    shutil.unpack_archive(directory / "lmdb-3.0.0.tar.gz", directory, filter="data")
    found = {}
    for library in ("lib", "lib1"):
        sources = directory / "lmdb-3.0.0" / library
        found[library] = directory / library
        options = ["-O1", "-w", "-pthread", "-Dsysconf=page_bytes_or", f"-I{sources}", "-o", found[library]]
        program = support.TESTS / "support/lmdb_pages.c"
        subprocess.run(["gcc", *options, program, sources / "mdb.c", sources / "midl.c"], check=True)
    return found


def sizes_around(rng, page_bytes, kind, count):
    """Lengths of values of one size, around half a page, or up to three pages."""
    half = page_bytes // 2
    if kind == 0:
        return [rng.choice([20, half - 60, half, 2 * page_bytes])] * count
    if kind == 1:
        return [half - rng.randrange(64) for _ in range(count)]
    return [rng.randrange(3 * page_bytes) for _ in range(count)]


@pytest.mark.parametrize("page_bytes", [512, 1024, 2048, 8192, 16384, 32768, 65536])
@pytest.mark.parametrize("library", ["lib", "lib1"])
def test_pages_of_another_size_follow_the_same_rules(tmp_path, writers, library, page_bytes):
    if library == "lib" and page_bytes == 65536:
        pytest.skip("LMDB 0.9 has no pages of 64 KiB")
    rng = random.Random(f"{library} {page_bytes}")
    for number in range(12):
        count = rng.choice([100, 1000, 3000])
        size = sizes_around(rng, page_bytes, number % 3, count)
        key_bytes, every, append = rng.choice([8, 9, 20]), rng.choice([1, 7, 100, count]), rng.randrange(2)
        path = tmp_path / f"{number}.mdb"
        command = [writers[library], path, page_bytes, key_bytes, every, append]
        subprocess.run([*map(str, command)], input="".join(f"{one}\n" for one in size), text=True, check=True)
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(
            f'keys = "%0{key_bytes}d"\nvalues = {histories.lengths(tmp_path / "values.txt", size)}\n'
            f"commit_every = {every}\nappend = {str(bool(append)).lower()}\npage_bytes = {page_bytes}\n"
        )
        dataset = forebay.open(str(path), schema="raw")
        declare_recipe(dataset, recipe)
        verified = verify_recipe(dataset)
        assert verified["no_recipe"] is None, (command, size[:5])
        derived = build_recipe(forebay.open(str(path), schema="raw"))
        assert derived["recipe"] is not None, command
