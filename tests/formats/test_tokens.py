"""Files of tokens: windows are those that numpy cuts, documents those that were written."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import struct
import tarfile
import warnings
import zlib

import lmdb
import numpy as np
import pytest

import forebay
from support.ranks import choice
from support.tiering import MEMORY

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
TOKENS = 5_003


def values(dtype="uint16", count=TOKENS, seed=1):
    return np.random.default_rng(seed).integers(0, 120, count).astype(dtype)


def write_pair(path, tokens, lengths, bounds=None):
    """Write a pair as Megatron-LM does, from the description of its format."""
    tokens.tofile(path.with_suffix(".bin"))
    lengths = np.asarray(lengths, "<i4")
    places = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype("<i8") * tokens.itemsize
    bounds = np.arange(len(lengths) + 1) if bounds is None else np.asarray(bounds)
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[tokens.dtype.name], len(lengths), len(bounds))
    path.with_suffix(".idx").write_bytes(
        head + lengths.tobytes() + places.tobytes() + bounds.astype("<i8").tobytes()
    )
    return path.with_suffix(".bin")


def cut(tokens, window, stride):
    """The windows, as numpy cuts them."""
    return np.lib.stride_tricks.sliding_window_view(tokens, window)[::stride]


def quietly(path, window, **more):
    """Open and build the index; the rest of the tokens is told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* fill no window of")
        # Of files that a test writes twice.
        warnings.filterwarnings("ignore", message=".* sidecar ignored: it is stale")
        dataset = forebay.tokens(path, window, **more)
        len(dataset)
    return dataset


@pytest.fixture
def written(tmp_path):
    """Write the tokens as a kind of file."""

    def write(kind, tokens):
        path = tmp_path / f"x.{kind}"
        if kind == "npy":
            np.save(path, tokens)
            return path
        if kind == "bin":
            tokens.tofile(path)
            return path
        lengths = np.random.default_rng(2).multinomial(len(tokens), np.ones(40) / 40)
        return write_pair(tmp_path / "pair", tokens, lengths)

    return write


@pytest.mark.parametrize("kind", ["npy", "bin", "megatron"])
@pytest.mark.parametrize(
    ("window", "stride", "dtype"),
    [
        (129, 128, "uint16"),
        (64, None, "int32"),
        (50, 7, "uint8"),
        (3, 10, "int16"),
        (TOKENS, 1, "int64"),
        (1, 1, "int8"),
    ],
)
def test_samples_are_the_windows_that_numpy_cuts(written, kind, dtype, window, stride):
    tokens = values(dtype)
    dataset = quietly(written(kind, tokens), window, dtype=dtype, stride=stride)
    expected = cut(tokens, window, stride or window)
    assert dataset.fields == {"tokens": (dtype, (window,))}
    assert len(dataset) == len(expected)
    for number in {0, len(expected) // 2, len(expected) - 1}:
        assert dataset[number]["tokens"].dtype == dtype
        np.testing.assert_array_equal(dataset[number]["tokens"], expected[number])
    size = min(len(expected), 16)
    with forebay.Loader(dataset, size, order="shuffle", node_memory=MEMORY, last_batch="partial") as loader:
        seen = []
        for batch in loader:
            np.testing.assert_array_equal(batch["tokens"], expected[batch.indices])
            seen += batch.indices.tolist()
    assert sorted(seen) == list(range(len(expected)))


def test_shards_are_cut_one_by_one(tmp_path):
    shards = [values(count=count, seed=count) for count in (1_000, 37, 333)]
    for number, tokens in enumerate(shards):
        tokens.tofile(tmp_path / f"{number}.bin")
    dataset = quietly(str(tmp_path / "*.bin"), 30, dtype="u2", stride=20)
    expected = np.concatenate([cut(tokens, 30, 20) for tokens in shards])
    np.testing.assert_array_equal([one["tokens"] for one in dataset], expected)


@pytest.mark.parametrize("seed", range(8))
def test_cut_windows_end_with_their_documents(tmp_path, seed):
    random = np.random.default_rng(seed)
    window, stride = int(random.integers(1, 40)), int(random.integers(1, 40))
    lengths = random.integers(0, 90, 30)  # empty ones among them
    bounds = [0, *sorted(random.integers(0, 31, 12).tolist()), 30]
    tokens = values("int32", int(lengths.sum()), seed)
    dataset = quietly(
        write_pair(tmp_path / "x", tokens, lengths, bounds), window, stride=stride, documents="cut"
    )
    ends = np.concatenate([[0], np.cumsum(lengths)])[bounds]
    expected = []
    for first, end in itertools.pairwise(ends):
        start = first
        while start < end:
            expected.append(tokens[start : min(start + window, end)])
            if start + window >= end:
                break
            start += stride
    assert dataset.fields == {"tokens": ("int32", None)}
    with forebay.Loader(dataset, 5, order="sequential", node_memory=MEMORY, last_batch="partial") as loader:
        found = [row.copy() for batch in loader for row in batch["tokens"]]
        assert [row.tolist() for row in found] == [row.tolist() for row in expected]
        assert [dataset[number]["tokens"].tolist() for number in range(3)] == [
            row.tolist() for row in expected[:3]
        ]


def test_document_ids_count_from_the_start_of_a_window(tmp_path):
    lengths = [5, 0, 3, 12, 4]
    path = write_pair(tmp_path / "x", values(count=24), lengths)
    dataset = quietly(path, 6)
    numbers = np.repeat(np.arange(5), lengths)
    numbers = np.unique(numbers, return_inverse=True)[1].reshape(4, 6)
    with forebay.Loader(dataset, 2, order="shuffle", node_memory=MEMORY) as loader:
        for batch in loader:
            expected = numbers[batch.indices] - numbers[batch.indices, :1]
            np.testing.assert_array_equal(dataset.document_ids(batch.indices), expected)
    chosen = dataset.select([3, 1])
    assert isinstance(chosen, forebay.TokenDataset)
    np.testing.assert_array_equal(chosen.document_ids([0]), dataset.document_ids([3]))
    again = pickle.loads(pickle.dumps(chosen))
    np.testing.assert_array_equal(again.document_ids([1]), dataset.document_ids([1]))


def test_ranks_share_windows_as_one_process_reads_them(pool, tmp_path):
    dataset = quietly(write_pair(tmp_path / "x", values(), [TOKENS]), 65, stride=64)
    options = {"batch_size": 4, "order": "group", "node_memory": MEMORY, "last_batch": "drop"}
    two = pool.run(2, choice.deliver, dataset=dataset, options=options, epochs=1)
    seen = [number for steps, _ in two for ids, _ in steps for number in ids]
    assert len(seen) == len(set(seen)) == len(dataset) // 8 * 8


def test_a_slice_and_a_selection_are_windows(tmp_path):
    tokens = values(count=100)
    path = tmp_path / "x.npy"
    np.save(path, tokens)
    dataset = forebay.tokens(path, 10)
    expected = cut(tokens, 10, 10)
    assert [sample["tokens"].tolist() for sample in dataset[2:9:3]] == expected[2:9:3].tolist()
    assert [sample["tokens"].tolist() for sample in dataset.select([5, 1])[0:2]] == expected[[5, 1]].tolist()


def test_an_odd_tail_is_told(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(values(count=100).tobytes() + b"!")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(forebay.tokens(path, 30, dtype="u2")) == 3
    messages = sorted(str(one.message) for one in told)
    assert len(messages) == 2
    assert "the last 1 bytes are no token of 2" in messages[0]
    assert "the last 10 of 100 tokens fill no window of 30 and are left out" in messages[1]


@pytest.mark.parametrize(
    ("at", "replaced", "says"),
    [
        (6, b"Y", "magic at offset 0"),
        (9, b"\x02", "version at offset 9: expected 1, found 2"),
        (17, b"\x63", "code of the type of tokens at offset 17: expected 1 to 8, found 99"),
        (18, b"\xff" * 8, "length of the index at offset 18"),
        (
            34,
            b"\xff" * 4,
            "length of a sequence at offset 34: expected 0 to 60, the tokens that are left, found -1",
        ),
        (
            34,
            b"\xff\xff",
            "length of a sequence at offset 34: expected 0 to 60, the tokens that are left, found 65535",
        ),
        (42, b"\x1d", "tokens of all sequences at offset 34: expected 60, those of the data file, found 59"),
        (54, b"\x07", "place of a sequence at offset 54: expected 20, found 7"),
        (70, b"\x01", "bound of a document at offset 70: expected 0 to 3, found 1"),
        (86, b"\x00", "bound of a document at offset 86: expected 1 to 3, found 0"),
        (94, b"\x02", "last bound of documents at offset 94: expected 3, found 2"),
        (20, None, "index of Megatron-LM at offset 0"),
        (101, None, "length of the index at offset 18"),
    ],
)
def test_a_damaged_index_of_a_pair_is_refused(tmp_path, at, replaced, says):
    path = write_pair(tmp_path / "x", values(count=60), [10, 20, 30])
    index = path.with_suffix(".idx")
    raw = index.read_bytes()
    assert len(raw) == 102
    index.write_bytes(raw[:at] if replaced is None else raw[:at] + replaced + raw[at + len(replaced) :])
    with pytest.raises(forebay.FormatError) as caught:
        quietly(path, 10)
    assert f"x.idx: {says}" in str(caught.value)


def test_random_bytes_as_an_index_never_crash(tmp_path):
    path = write_pair(tmp_path / "x", values(count=60), [10, 20, 30])
    raw = path.with_suffix(".idx").read_bytes()
    random = np.random.default_rng(5)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(raw)
        for at in random.integers(0, len(raw), random.integers(1, 4)):
            damaged[at] = random.integers(0, 256)
        path.with_suffix(".idx").write_bytes(damaged)
        try:
            outcomes.add(len(quietly(path, 10)))
        except forebay.FormatError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"window": 0}, "window=: expected a number of tokens, from 1 to 2**40 - 1, found 0"),
        ({"window": 4, "stride": 0}, "stride=: expected"),
        ({"window": 2.5}, "window=: expected"),
        ({"window": 4, "dtype": "f4"}, "expected integers in the byte order of this machine"),
        ({"window": 4, "dtype": ">u2"}, "expected integers in the byte order of this machine"),
        ({"window": 4, "dtype": "nonsense"}, "dtype=:"),
        ({"window": 4, "dtype": "u2", "documents": "mask"}, 'expected "ignore" or "cut"'),
        ({"window": 4}, "does not say of which type its tokens are"),
        ({"window": 4, "dtype": "u2", "documents": "cut"}, "does not say where documents begin"),
        ({"window": 61, "dtype": "u2"}, "60 tokens, and windows of 61"),
    ],
)
def test_wrong_arguments_say_what_is_expected(tmp_path, arguments, says):
    values(count=60).tofile(tmp_path / "x.bin")
    with pytest.raises(forebay.ForebayError) as caught:
        quietly(tmp_path / "x.bin", **arguments)
    assert says in str(caught.value)


def test_files_that_contradict_the_caller_are_refused(tmp_path):
    path = write_pair(tmp_path / "x", values(count=60), [60])
    with pytest.raises(
        forebay.OptionError, match="dtype=int32, and the file says that its tokens are uint16"
    ):
        forebay.tokens(path, 4, dtype="i4")
    np.save(tmp_path / "two.npy", np.zeros((3, 4), "i4"))
    with pytest.raises(forebay.FormatError, match="more than one axis"):
        forebay.tokens(tmp_path / "two.npy", 4)
    np.save(tmp_path / "big.npy", np.zeros(4, ">u2"))
    with pytest.raises(forebay.FormatError, match=r"no integers of this machine \(>u2"):
        forebay.tokens(tmp_path / "big.npy", 4)
    np.save(tmp_path / "float.npy", np.zeros(4, "f4"))
    with pytest.raises(forebay.FormatError, match="no integers"):
        forebay.tokens(tmp_path / "float.npy", 4)
    np.save(tmp_path / "x.npy", np.zeros(60, "i4"))
    plain = quietly(tmp_path / "x.npy", 4)
    with pytest.raises(forebay.OptionError, match=r"there is no format|expected one of"):
        forebay.open(path, format="tokens")
    with pytest.raises(forebay.OptionError, match="does not say where documents begin"):
        plain.document_ids([0])


def test_a_changed_index_is_noticed(tmp_path):
    path = write_pair(tmp_path / "x", values(count=60), [10, 50])
    first = quietly(path, 10, documents="cut")
    write_pair(tmp_path / "x", values(count=60), [30, 30])
    second = quietly(path, 10, documents="cut")
    assert first.fingerprint != second.fingerprint


def write_llm_c(path, tokens, magic, version, count=None):
    """Write a file as llm.c does, from its description."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
def test_the_header_of_llm_c_is_no_token_and_says_their_type(tmp_path, magic, version, dtype):
    tokens = values(dtype, 100)
    path = write_llm_c(tmp_path / "x.bin", tokens, magic, version)
    dataset = quietly(path, 9, stride=8)
    assert dataset.fields == {"tokens": (dtype, (9,))}
    np.testing.assert_array_equal([one["tokens"] for one in dataset], cut(tokens, 9, 8))
    with pytest.raises(forebay.OptionError, match="dtype=int64"):
        forebay.tokens(path, 9, dtype="i8")
    with pytest.raises(
        forebay.FormatError, match=r"number of tokens at offset 8: expected what .* found 101"
    ):
        forebay.tokens(write_llm_c(tmp_path / "cut.bin", tokens, magic, version, 101), 9)
    with pytest.raises(forebay.FormatError, match=r"version 9 \(expected [17]\)"):
        forebay.tokens(write_llm_c(tmp_path / "new.bin", tokens, magic, 9), 9)


def test_header_bytes_are_left_out_whatever_they_are(tmp_path):
    tokens = values(count=100)
    (tmp_path / "x.bin").write_bytes(b"PAR1" + tokens.tobytes())
    dataset = quietly(tmp_path / "x.bin", 10, dtype="u2", header_bytes=4)
    np.testing.assert_array_equal([one["tokens"] for one in dataset], cut(tokens, 10, 10))
    whole = quietly(tmp_path / "x.bin", 102, dtype="u2", header_bytes=0)
    assert whole[0]["tokens"].tobytes() == (tmp_path / "x.bin").read_bytes()
    with pytest.raises(forebay.FormatError, match="at least 205, as header_bytes= says, found 204"):
        forebay.tokens(tmp_path / "x.bin", 10, dtype="u2", header_bytes=205)
    with pytest.raises(forebay.OptionError, match="header_bytes=: expected a number, at least 0, found -1"):
        forebay.tokens(tmp_path / "x.bin", 10, dtype="u2", header_bytes=-1)


def other_files(directory):
    """Write a file of each kind that is no file of tokens: name → what it is called."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    h5py = pytest.importorskip("h5py")
    table = pa.table({"ids": list(range(300))})
    pq.write_table(table, directory / "x.parquet")
    with pa.OSFile(str(directory / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    np.savez(directory / "x.npz", ids=np.arange(300))
    with h5py.File(directory / "x.h5", "w") as file:
        file["ids"] = np.arange(300)
    with lmdb.open(str(directory / "x.mdb"), subdir=False, lock=False) as environment:
        environment.begin(write=True).put(b"a", b"b")
    (directory / "x.gz").write_bytes(gzip.compress(bytes(300)))
    (directory / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(300))
    (directory / "x.zlib").write_bytes(zlib.compress(bytes(300)))
    (directory / "x.json").write_text(json.dumps({"ids": list(range(300))}))
    (directory / "x.jsonl").write_text('{"text": "a"}\n' * 90)
    (directory / "x.csv").write_text("id,text\n1,a\n" * 90)
    (directory / "x.txt").write_text("It was a dark and stormy night.\n" * 30)
    (directory / "x.pkl").write_bytes(pickle.dumps(list(range(300)), 4))
    header = b'{"ids":{"dtype":"I32","shape":[75],"data_offsets":[0,300]}}'
    (directory / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(300))
    with tarfile.open(directory / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    names = {
        "parquet": "parquet",
        "arrow": "arrow",
        "npz": "npz",
        "h5": "hdf5",
        "mdb": "lmdb",
        "gz": "gzip",
        "zst": "zstd",
        "zlib": "zlib",
        "json": "JSON",
        "jsonl": "JSON in lines",
        "csv": "CSV",
        "txt": "text",
        "pkl": "pickle",
        "safetensors": "safetensors",
        "tar": "tar",
    }
    assert {path.suffix[1:] for path in directory.iterdir() if path.is_file()} == names.keys()
    return names


def test_files_of_other_formats_are_no_tokens(tmp_path):
    for ending, name in other_files(tmp_path).items():
        path = tmp_path / f"x.{ending}"
        with pytest.raises(forebay.FormatError, match=r"tokens in another format .*it looks like") as caught:
            forebay.tokens(path, 4, dtype="u2")
        message, _, hint = str(caught.value).partition("\nhint: ")
        assert name in message
        assert "header_bytes=0 takes all its bytes as tokens" in hint
        taken = quietly(path, 4, dtype="u1", header_bytes=0)
        assert bytes(taken[0]["tokens"]) == path.read_bytes()[:4]
    # Letters are tokens where each has a byte.
    assert len(quietly(tmp_path / "x.txt", 32, dtype="u1")) == 30


def test_ids_that_begin_like_a_short_mark_are_tokens(tmp_path):
    for first in (0x9C78, 0x0178, 0x8B1F, 0xD8FF, 0x5A42):
        tokens = values(count=400)
        tokens[0] = first
        tokens.tofile(tmp_path / f"{first}.bin")
        assert quietly(tmp_path / f"{first}.bin", 400, dtype="u2")[0]["tokens"][0] == first


@pytest.mark.parametrize("access", ["auto", "pread"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_ids_beyond_the_vocabulary_raise_with_their_place(tmp_path, access, dtype):
    tokens = values(dtype)
    path = tmp_path / "x.npy"
    np.save(path, tokens)
    reading = {"node_memory": MEMORY, "strategy": forebay.Strategy(access=access), "last_batch": "partial"}
    whole = quietly(path, 50, vocabulary=120)
    with forebay.Loader(whole, 10, order="shuffle", **reading) as loader:
        assert sum(len(batch.indices) for batch in loader) == len(whole)
    tokens[777] = 120
    np.save(path, tokens)
    dataset = quietly(path, 50, vocabulary=120)
    offset = path.stat().st_size - tokens.nbytes + 777 * tokens.itemsize
    wrong = f"id of a token at offset {offset}: expected 0 to 119, as vocabulary=120 says, found 120"
    with pytest.raises(forebay.FormatError, match=wrong):
        dataset[777 // 50]
    assert dataset[0]["tokens"].tolist() == tokens[:50].tolist()
    for order in ("sequential", "shuffle"):
        with (
            forebay.Loader(dataset, 10, order=order, **reading) as loader,
            pytest.raises(forebay.FormatError, match=wrong),
        ):
            list(loader)
    # Who does not ask gets what is there, by the same index.
    assert quietly(path, 50)[777 // 50]["tokens"][777 % 50] == 120
    assert dataset.fingerprint == quietly(path, 50).fingerprint
    assert dataset.native.verify()["bad_samples"] == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x04\x22\x4d\x18" + bytes(range(200)), "compressed with lz4"),
        (b"\x7fELF\x02\x01\x01" + bytes(200), "ELF"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"),
        (b"ORC\x0a\x11\x00\xff" + bytes(200), "ORC"),
        ("A dark night.\n".encode("utf-16"), "text in UTF-16"),
        (b"PK\x03\x04" + bytes(200), "a zip archive"),
    ],
)
def test_files_of_other_kinds_are_no_tokens(tmp_path, content, what):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(forebay.FormatError, match=what) as refused:
        forebay.tokens(tmp_path / "x.bin", window=4, dtype="u2")
    assert "reads the file as it is" not in str(refused.value)


def test_a_directory_of_tokens_is_refused_with_the_pattern_that_is_meant(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.bin").write_bytes(bytes(64))
    with pytest.raises(forebay.FormatError, match=r"forebay\.tokens\(\"[^\"]*/d/\*\.bin\""):
        forebay.tokens(tmp_path / "d", window=4, dtype="u2")
