"""tar files: webdataset says which members are samples, tarfile what they hold."""

from __future__ import annotations

import io
import random
import tarfile

import numpy as np
import pytest
import webdataset

import forebay
from support.ranks import fields

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path, members, kind="pax", **more):
    """Write a tar file of (name or TarInfo, bytes)."""
    with tarfile.open(path, "w", format=FORMATS[kind], **more) as archive:
        for name, data in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def special(name, kind):
    """A member that is no file."""
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = "elsewhere"
    return member


def oracle_samples(*paths):
    """Samples as webdataset delivers them."""
    samples = []
    for path in paths:
        with open(path, "rb") as stream:  # noqa: PTH123 - a stream is what it takes
            sources = [{"url": str(path), "stream": stream}]
            files = webdataset.tariterators.tar_file_expander(sources)
            samples += list(webdataset.tariterators.group_by_keys(files))
    return samples


def oracle(*paths):
    """The same, without webdataset's own keys."""
    return [
        {key: value for key, value in sample.items() if not key.startswith("__")}
        for sample in oracle_samples(*paths)
    ]


def sample(dataset, index):
    return {name: np.asarray(value).tobytes() for name, value in dataset[index].items()}


def images(seed, count, stem="{:05d}"):
    """Members of samples of a family: an image and a class."""
    rng = random.Random(seed)
    members = []
    for number in range(count):
        name = stem.format(number)
        members.append((f"{name}.jpg", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000, 70_000]))))
        members.append((f"{name}.CLS", str(rng.randrange(1000)).encode()))
    return members


STEMS = {
    "plain": "{:05d}",
    "deep": "a/b.c/d/{:05d}",
    "long": "x" * 90 + "/" + "y" * 60 + "/{:05d}",
    "longer": "p/" * 20 + "n" * 200 + "{:05d}",
    "other letters": "übung/日本-{:05d}",
}


# ustar has no room for the longest names.
FAMILY = [(kind, stem) for kind in FORMATS for stem in STEMS if (kind, stem) != ("ustar", "longer")]


@pytest.mark.parametrize(("kind", "stem"), FAMILY)
def test_samples_are_those_of_webdataset(tmp_path, kind, stem):
    path = write(tmp_path / "a.tar", images(1, 60, STEMS[stem]), kind)
    dataset = forebay.open(path)
    assert dataset.format == "tar"
    expected = oracle(path)
    assert [sample(dataset, index) for index in range(len(dataset))] == expected
    assert dataset.fields == {"cls": ("uint8", None), "jpg": ("uint8", None)}
    with tarfile.open(path) as archive:
        places = [(member.offset_data, member.size) for member in archive]
    assert dataset.extents(7) == [(str(path), *places[15]), (str(path), *places[14])]


def test_what_webdataset_passes_over_is_counted(tmp_path, says):
    members = [
        (special("dir", tarfile.DIRTYPE), b""),
        ("__meta__/about.json", b"{}"),
        ("dir/a.txt", b"a"),
        (special("dir/link.txt", tarfile.SYMTYPE), b""),
        ("dir/README", b"no extension"),
        (".hidden", b"none"),
        ("dir/b.seg.txt", b"of another field"),
        ("dir/b.txt", b"b"),
        ("dir/.c.txt", b"of the directory"),
    ]
    path = write(tmp_path / "a.tar", members)
    dataset = forebay.open(path, fields=["txt"])
    with says(forebay.FormatError, "dir/", "txt"):
        len(dataset)
    path = write(tmp_path / "a.tar", members[:-1])
    dataset = forebay.open(path, fields=["txt"])
    assert [sample(dataset, index)["txt"] for index in range(len(dataset))] == [b"a", b"b"]
    assert [one["txt"] for one in oracle(path)] == [b"a", b"b"]
    assert dataset.native.inspect()["records"]["excluded"] == {
        "about the archive (__name__)": 1,
        "directories, links and devices": 2,
        "of fields that are not asked for": 1,
        "without an extension": 2,
    }


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("order", ["sequential", "group"])
def test_ranks_deliver_every_sample_of_all_shards_once(tmp_path, pool, ranks, order):
    paths = [write(tmp_path / f"{shard}.tar", images(shard, 50 + shard)) for shard in range(3)]
    expected = oracle(*paths)
    found = fields.everything(pool, [str(path) for path in paths], {}, ranks, order)
    assert sorted(found) == list(range(len(expected)))
    for number, sample in found.items():
        assert {name: value.tobytes() for name, value in sample.items()} == expected[number]


def test_fields_are_picked_in_the_order_of_the_caller(tmp_path, says):
    path = write(tmp_path / "a.tar", images(2, 9))
    dataset = forebay.open(path, fields=["jpg", "cls"])
    assert list(dataset.fields) == ["jpg", "cls"]
    dataset = forebay.open(path, fields=["cls"])
    assert [sample(dataset, index)["cls"] for index in range(9)] == [one["cls"] for one in oracle(path)]
    with says(forebay.OptionError, "png"):
        forebay.open(path, fields=["png"])


def test_neighbours_only_are_one_sample(tmp_path):
    path = write(tmp_path / "a.tar", [("c.jpg", b"1"), ("a.jpg", b"2"), ("c.jpg", b"3")])
    assert len(forebay.open(path)) == len(oracle(path)) == 3


def test_a_sample_with_other_fields_is_named(tmp_path, says):
    path = write(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("b.jpg", b"2"), ("c.jpg", b"3")])
    with says(forebay.FormatError, "b", 2048, "cls") as error:
        len(forebay.open(path))
    assert "fields=" in str(error.value)
    path = write(tmp_path / "b.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.cls", b"3")])
    with says(forebay.FormatError, "b.cls", 2048, "cls"):
        len(forebay.open(path))
    assert len(forebay.open(path, fields=["jpg"])) == 2


def test_the_same_field_twice_is_an_error_as_in_webdataset(tmp_path, says):
    path = write(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(ValueError, match="duplicate file name"):
        oracle(path)
    with says(forebay.FormatError, "a.JPG", 1024, "jpg"):
        len(forebay.open(path))


@pytest.mark.parametrize("name", ["\0a.jpg", "a\0.jpg", "/"])
def test_a_pax_name_that_is_none_is_an_error(tmp_path, name):
    member = tarfile.TarInfo("b.jpg")
    member.pax_headers = {"path": name}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(forebay.FormatError, match=r"tar extended header at offset 512: expected a path"):
        len(forebay.open(tmp_path / "a.tar"))


def test_bytes_behind_the_end_are_told_and_not_read(tmp_path, says):
    path = write(tmp_path / "a.tar", images(3, 5))
    path.write_bytes(path.read_bytes() * 2)
    dataset = forebay.open(path)
    with says(RuntimeWarning):
        assert len(dataset) == 5
    assert len(oracle(path)) == 5


def test_a_missing_end_is_no_error_and_a_cut_member_is_one(tmp_path, says):
    path = write(tmp_path / "a.tar", images(4, 5))
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1]
    whole = path.read_bytes()
    path.write_bytes(whole[: last.offset_data + 512])
    assert len(forebay.open(path)) == 5
    for length, found in [(last.offset_data + 1, 1), (last.offset_data - 12, 500)]:
        cut = tmp_path / f"{length}.tar"
        cut.write_bytes(whole[:length])
        with says(forebay.FormatError, found):
            len(forebay.open(cut))


@pytest.mark.parametrize(("suffix", "name"), [("gz", "gzip"), ("bz2", "bzip2"), ("xz", "xz")])
def test_compressed_files_are_refused_with_the_way_out(tmp_path, suffix, name, says):
    path = tmp_path / f"a.tar.{suffix}"
    with tarfile.open(path, f"w:{suffix}") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(forebay.FormatError, match=name):
        forebay.open(path)
    with says(forebay.FormatError, name) as error:
        forebay.open(path, format="tar")
    assert "decompress it: " in str(error.value)


def sparse_gnu(tmp_path):
    member = tarfile.TarInfo("a.bin")
    member.type = tarfile.GNUTYPE_SPARSE
    return write(tmp_path / "gnu.tar", [(member, bytes(512))], "gnu")


def sparse_pax(tmp_path):
    member = tarfile.TarInfo("GNUSparseFile.1/a.bin")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.bin"}
    return write(tmp_path / "pax.tar", [(member, bytes(512))])


@pytest.mark.parametrize("make", [sparse_gnu, sparse_pax])
def test_sparse_members_are_refused(tmp_path, make, says):
    with says(forebay.FormatError):
        forebay.open(make(tmp_path))


def test_a_wrong_checksum_names_its_offset(tmp_path, says):
    path = write(tmp_path / "a.tar", [("a.bin", b"1"), ("b.bin", b"2")])
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    path.write_bytes(data)
    with says(forebay.FormatError, 1172):
        len(forebay.open(path))


def test_a_size_that_only_a_pax_header_can_say_is_believed_up_to_the_end_of_the_file(tmp_path, says):
    path = tmp_path / "huge.tar"
    size = 9 << 30
    member = tarfile.TarInfo("a.bin")
    member.size = size
    with path.open("wb") as file:
        file.write(member.tobuf(tarfile.PAX_FORMAT))
        file.truncate(file.tell() + size)
    dataset = forebay.open(path)
    assert dataset.extents(0) == [(str(path), path.stat().st_size - size, size)]
    with path.open("r+b") as file:
        file.truncate(size - 512)
    with says(forebay.FormatError, size):
        len(forebay.open(path))


def test_an_empty_archive_has_no_samples(tmp_path, says):
    path = write(tmp_path / "a.tar", [])
    with says(forebay.FormatError):
        len(forebay.open(path, format="tar"))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("ranks", [1, 3])
def test_keys_are_a_field_where_they_are_asked_for(tmp_path, pool, kind, ranks):
    # In the header's name, in its prefix as well, and in a header before it.
    names = ["a", "dir/b.jpg-no", f"{'d' * 60}/{'e' * 60}", "ü" * (1 if kind == tarfile.USTAR_FORMAT else 80)]
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=kind) as archive:
        for number, name in enumerate(name.partition(".")[0] for name in names):
            for extension in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = number
                archive.addfile(member, io.BytesIO(bytes(number)))
    expected = [one["__key__"].encode() for one in oracle_samples(path)]
    assert "__key__" not in forebay.open(path).fields
    dataset = forebay.open(path, fields=["cls", "__key__"])
    assert list(dataset.fields) == ["cls", "__key__"]
    assert [bytes(dataset[number]["__key__"]) for number in range(len(dataset))] == expected
    found = fields.everything(pool, str(path), {"fields": ["__key__", "jpg"]}, ranks, "group")
    assert [found[number]["__key__"].tobytes() for number in range(len(expected))] == expected
    alone = forebay.open(path, fields=["__key__"], decode={"__key__": "text"})
    with forebay.Loader(alone, 4, order="sequential", last_batch="partial") as loader:
        assert [key for batch in loader for key in batch["__key__"]] == [key.decode() for key in expected]
