"""Paths: braces, patterns, missing files, addresses; and the indices of a dataset."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

import forebay
import support
from forebay import OptionError, StorageError
from forebay._braces import braces

EXPANSIONS = [
    "train-{0000..0003}.tar",
    "{8..11}",
    "{08..11}",
    "{11..8}",
    "{-2..2}",
    "{-02..2}",
    "{0..10..4}",
    "{10..0..-5}",
    "{0..3..0}",
    "{a..e}{1..2}",
    "{C..A}",
    "{train,val}/{0..1}.h5",
    "{a,b{1..3},c{x,y}z}",
    "a{,b}c",
    "{a,}{b,}",
    "{{a,b},{c,d}}",
    "{{a,b}}",
    "x{y}z{}",
    "{a,b",
    "a,b}",
    "{a{b,c}",
    "{a..b..c}",
    "{1..b}",
    r"\{a,b\}",
    r"{a\,b,c}",
    "{0..2}-{0..2}-{x}",
    "{01..03..2}{a,b{c,d}}",
]


@pytest.fixture(scope="module")
def in_bash():
    """What bash makes of each."""
    code = "".join(f"printf '%s\\n' {text}; echo =;" for text in EXPANSIONS)
    done = subprocess.run(["bash", "-fc", code], capture_output=True, text=True, check=True)
    return dict(zip(EXPANSIONS, (part.splitlines() for part in done.stdout.split("=\n")), strict=False))


@pytest.mark.parametrize("text", EXPANSIONS)
def test_braces_stand_for_what_bash_makes_of_them(in_bash, text):
    assert braces(text) == in_bash[text]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{0..99999999}", (100000000, 1048576)),
        ("{0..999}{0..999}{0..999}", (1000000000,)),
        ("{0..999999999999999999}" * 40, (10,)),
        ("{a," * 40 + "b" + "}" * 40, (32,)),
    ],
)
def test_braces_that_stand_for_too_much_are_refused_before_anything_is_made(text, values, says):
    with says(OptionError, *values):
        forebay.open(text)


def test_braces_of_any_depth_that_are_not_closed_are_text():
    assert braces("{" * 10_000) == ["{" * 10_000]
    assert braces("{1..9999999999999999999999}") == ["{1..9999999999999999999999}"]


def shards(directory, names):
    for number, name in enumerate(names):
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.full(2 + number, number))


def values(path):
    return [int(sample["data"]) for sample in forebay.open(path)]


def test_braces_and_patterns_are_shards_of_one_dataset(tmp_path):
    shards(tmp_path, ["a-0009.npy", "a-0010.npy", "a-0011.npy", "val/x1.npy", "val/x2.npy"])
    assert values(f"{tmp_path}/a-{{0010..0009}}.npy") == [1] * 3 + [0] * 2
    assert values([f"{tmp_path}/a-{{0009,0011}}.npy", tmp_path / "a-0010.npy"]) == [0] * 2 + [2] * 4 + [1] * 3
    assert values(tmp_path / "{val/x?,a-0009}.npy") == [3] * 5 + [4] * 6 + [0] * 2


def test_something_of_that_very_name_goes_before_braces_and_patterns(tmp_path):
    shards(tmp_path, ["{0..1}.npy", "0.npy", "1.npy", "[0].npy"])
    assert values(f"{tmp_path}/{{0..1}}.npy") == [0] * 2
    assert values(f"{tmp_path}/[0].npy") == [3] * 5


def refusal(path, kind=StorageError):
    with pytest.raises(kind) as caught:
        forebay.open(path)
    return str(caught.value)


def test_files_of_a_list_that_do_not_exist_are_named(tmp_path):
    shards(tmp_path, ["a-0.npy", "a-2.npy"])
    text = refusal(f"{tmp_path}/a-{{0..3}}.npy")
    assert f"2 of 4 paths do not exist: {tmp_path}/a-1.npy, {tmp_path}/a-3.npy" in text
    assert f"the directory {tmp_path} exists and holds" in text
    text = refusal(f"{tmp_path}/a-{{0..30}}.npy")
    assert "29 of 31 paths do not exist" in text
    assert text.count("a-1") < 5


def test_a_path_that_does_not_exist_comes_with_what_does(tmp_path, monkeypatch):
    shards(tmp_path, ["train.npy", "valid.npy", ".hidden", *(f"other{number:02}" for number in range(20))])
    text = refusal(tmp_path / "trian.npy")
    assert (
        f"{tmp_path}/trian.npy does not exist (the directory {tmp_path} exists and holds train.npy, " in text
    )
    assert text.endswith(f"hint: is {tmp_path}/train.npy meant?")
    assert ".hidden" not in text
    assert " more)" in text
    # The part that is missing is a directory.
    (tmp_path / "images").mkdir()
    assert f"hint: is {tmp_path}/images meant?" in refusal(tmp_path / "imags" / "x" / "y.npy")
    assert f"the directory {tmp_path}/images exists and is empty" in refusal(tmp_path / "images" / "y.npy")
    assert f"{tmp_path}/train.npy is a file, not a directory" in refusal(tmp_path / "train.npy" / "x")
    (tmp_path / "link.npy").symlink_to("gone.npy")
    assert "is a symbolic link to gone.npy, which does not exist" in refusal(tmp_path / "link.npy")
    monkeypatch.chdir(tmp_path)
    assert f"the working directory {tmp_path} exists and holds valid.npy" in refusal("valud.npy")
    assert "braces stand for paths as in" in refusal("zzz{0..b}zzz")


def test_a_pattern_that_matches_nothing_comes_with_what_there_is(tmp_path):
    shards(tmp_path, ["x/train-0.npy"])
    text = refusal(f"{tmp_path}/x/valid-*.npy")
    assert f"no file matches the pattern {tmp_path}/x/valid-*.npy" in text
    assert f"(the directory {tmp_path}/x exists and holds train-0.npy)" in text
    assert f"the directory {tmp_path} exists" in refusal(f"{tmp_path}/no/where/*.npy")


def test_a_loader_says_the_same_of_a_path_that_does_not_exist(tmp_path, says):
    with says(StorageError):
        forebay.Loader(tmp_path / "x.npy", 4)


def test_a_path_that_cannot_be_asked_for_is_no_missing_file(tmp_path):
    text = refusal(tmp_path / ("x" * 300))
    assert "does not exist" not in text
    assert "File name too long" in text


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("s3://bucket/train-{0000..0131}.tar", "mountpoint-s3"),
        ("S3A://bucket/x", "mountpoint-s3"),
        (Path("s3://bucket/x"), "mountpoint-s3"),
        ("gs://bucket/x", "gcsfuse"),
        ("hf://datasets/a/b/x.tar", "hf download"),
        ("az://container/x", "blobfuse2"),
        ("https://host/x.tar", "download"),
        ("hdfs://name:8020/x", "hdfs dfs -get"),
        ("file:///data/x", "without file://"),
        ("pipe:curl -s https://host/x.tar", "run the command"),
        ("abfs://x@y/z", "forebay convert abfs://x@y/z TARGET"),
        ("of-a-user://x/y", "mount it as a directory"),
    ],
)
def test_addresses_are_refused_with_a_way_to_make_them_files(path, hint):
    text = refusal([path], OptionError)
    assert "is not a path: expected files of a file system, found an address" in text
    assert hint in text.partition("\nhint: ")[2]


def test_a_file_whose_name_looks_like_an_address_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shards(tmp_path, ["s3:/x.npy"])
    assert values("s3://x.npy") == [0, 0]


@pytest.mark.parametrize("path", ["a\0b", ["x", "a\0b.tar"]])
def test_a_zero_byte_in_a_path_is_refused(path):
    assert "with a zero byte" in refusal(path, OptionError)


def test_a_slice_is_a_list_of_samples(tmp_path, says):
    np.save(tmp_path / "x.npy", np.arange(10))
    dataset = forebay.open(tmp_path / "x.npy")
    numbers = list(range(10))
    for one in (
        slice(0, 3),
        slice(None),
        slice(-3, None),
        slice(8, 2, -2),
        slice(20, 30),
        slice(np.int64(2), None),
    ):
        assert [int(sample["data"]) for sample in dataset[one]] == numbers[one]
    for number in (3, -1, np.int32(4), np.uint64(5), np.array(6)):
        assert int(dataset[number]["data"]) == numbers[number]
        assert dataset.extents(number) == dataset.extents(int(number) % 10)
    for number in (10, -11, 2**63, -(2**70)):
        with says(IndexError, 10):
            dataset[number]


@pytest.mark.parametrize(
    "index", ["data", 1.0, None, [1, 2], (0, 1), slice("a", None), slice(0, 5, 0), np.arange(2)]
)
def test_what_is_no_number_of_a_sample_is_refused_with_advice(tmp_path, index):
    np.save(tmp_path / "x.npy", np.arange(10))
    dataset = forebay.open(tmp_path / "x.npy")
    with pytest.raises(OptionError, match=r"\nhint: ") as caught:
        dataset[index]
    assert isinstance(caught.value, TypeError)
    if isinstance(index, str):
        assert "dataset[0]['data']" in str(caught.value)


def test_text_that_utf8_cannot_hold_is_refused_by_the_name_of_its_option(tmp_path, small_lmdb):
    np.save(tmp_path / "x.npy", np.arange(10))
    with pytest.raises(OptionError, match="fields="):
        forebay.open(tmp_path / "x.npy", fields=["\udcff"])
    with pytest.raises(OptionError, match="database="):
        forebay.open(small_lmdb, database="\udcff")


def test_a_path_below_a_working_directory_that_was_removed_is_missing(tmp_path):
    code = """
import os, sys, forebay
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
try:
    forebay.open("train.lmdb")
except forebay.StorageError as error:
    print(error)
"""
    gone = tmp_path / "gone"
    gone.mkdir()
    done = support.run_python(code, gone)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train.lmdb does not exist" in done.stdout


@pytest.mark.parametrize("name", ["a{0..2}.npy", "a{x,y}.npy", "a[0-9].npy", "a*.npy", "{b}.npy"])
def test_commands_open_a_file_whose_name_is_a_pattern(tmp_path, capsys, name):
    np.save(tmp_path / name, np.arange(6))
    others = ["a0.npy", "a1.npy", "ax.npy", "ay.npy", "a2.npy"]
    shards(tmp_path, [other for other in others if other != name])
    path = str(tmp_path / name)
    assert values(path) == [0, 1, 2, 3, 4, 5]
    copies = [pickle.loads(pickle.dumps(forebay.open(path))), forebay.open(forebay.open(path).paths)]
    assert [len(copy) for copy in copies] == [6, 6]
    target = tmp_path / "out" / name.replace(".npy", ".h5")
    target.parent.mkdir()
    for command in ("index", "inspect", "verify", "convert"):
        rest = [target] if command == "convert" else []
        assert support.run_command(capsys, command, path, *rest)[0] == 0
    assert len(forebay.open(target)) == 6
    assert support.run_command_json(capsys, "inspect", path)["samples"] == 6


def test_a_backslash_keeps_a_brace_among_patterns(tmp_path):
    shards(tmp_path, ["a{0,1}-0.npy", "a{0,1}-1.npy", "a0-0.npy", "b,c.npy"])
    assert forebay.open(rf"{tmp_path}/a\{{0,1\}}-*.npy").paths == [
        str(tmp_path / "a{0,1}-0.npy"),
        str(tmp_path / "a{0,1}-1.npy"),
    ]
    assert forebay.open(rf"{tmp_path}/{{a0-0,b\,c}}.npy").paths == [
        str(tmp_path / "a0-0.npy"),
        str(tmp_path / "b,c.npy"),
    ]
