"""The demo: its data set, model, sources of batches, storage, launcher and page, and the whole of it, small."""

from __future__ import annotations

import html.parser
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator import needs_fuse, ours, remove_all
from forebay import OptionError, StorageError, launch, pfs
from forebay.demo import conductor, data, datum, page, results, sources, storage
from forebay.demo.conductor import main
from forebay.demo.model import Model

SAMPLES = 2000


def quiet(done: int, every: int) -> None:
    """Progress that nobody looks at."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> data.DataSet:
    return data.prepare(tmp_path_factory.mktemp("demo") / "data", data.Spec(SAMPLES), quiet)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make an empty directory."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let temporary directories, and so mounts, be made in an empty directory; whatever is mounted there goes at the end."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    remove_all(tmp_path)


# --- Datum ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1, 9, 127, 128, 2**31 - 1])
def test_a_datum_gives_back_its_pixels_and_label(label: int):
    pixels = bytes(range(24))
    found, found_label = datum.decode(datum.encode(pixels, label, channels=2, height=3, width=4))
    assert (bytes(found), found_label) == (pixels, label)


def test_a_datum_of_cifar_size_has_the_length_that_caffe_writes():
    assert len(datum.encode(bytes(3072), 1, channels=3, height=32, width=32)) == 3083


def test_datum_fields_come_in_any_order_unknown_ones_are_skipped_and_the_last_duplicate_wins():
    negative = b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    record = b"\x28\x05" + b"\x35\0\0\x80\x3f" + b"\x22\x01a" + b"\x51" + bytes(8) + b"\x22\x02bc" + negative
    found, label = datum.decode(record)
    assert (bytes(found), label) == (b"bc", -1)
    assert datum.decode(b"")[1] == 0


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\x22\x05abc", "expected 5 bytes, found 3"),
        (b"\x28\xff", "varint without an end"),
        (b"\x23", "wire type 3"),
        (b"\x35\0\0", "ends inside"),
    ],
)
def test_a_damaged_datum_is_an_error_that_says_where(record: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        datum.decode(record)


def test_a_datum_with_the_wrong_number_of_pixels_is_refused():
    with pytest.raises(ValueError, match="expected 24 bytes, found 23"):
        datum.encode(bytes(23), 0, channels=2, height=3, width=4)


# --- data set -------------------------------------------------------------------------------------------------------


def test_held_out_images_are_kept_apart_in_every_class():
    labels = np.repeat(np.arange(10), 50)
    training, held_out = data.part(labels, seed=0)
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out]) == list(range(500))
    assert (np.bincount(labels[held_out]) == 10).all()


def test_no_sample_is_made_from_a_held_out_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from sklearn.datasets import load_digits

    used: list[np.ndarray] = []
    plain = data.vary

    def spy(padded, numbers, generator):
        used.append(padded[numbers])
        return plain(padded, numbers, generator)

    monkeypatch.setattr(data, "vary", spy)
    made = data.prepare(tmp_path / "data", data.Spec(1000), quiet)
    with np.load(made.held_out) as file:
        held_out = file["number"]
    images = data.enlarge(load_digits().images)
    shown = {image[4:-4, 4:-4].tobytes() for image in np.concatenate(used)}
    hidden = {images[number].tobytes() for number in held_out}
    everything = {image.tobytes() for image in images}
    assert len(hidden) > 300
    assert shown <= everything - hidden


def test_the_set_is_a_caffe_database_with_mixed_classes(dataset: data.DataSet):
    import lmdb

    with (
        lmdb.open(str(dataset.database), readonly=True, lock=False) as environment,
        environment.begin() as read,
    ):
        records = list(read.cursor())
    assert [key for key, _ in records] == [b"%08d" % i for i in range(SAMPLES)]
    labels = np.array([datum.decode(value)[1] for _, value in records])
    assert {len(datum.decode(value)[0]) for _, value in records} == {3072}
    assert (np.bincount(labels, minlength=10) > SAMPLES / 20).all()
    # Sorted by class, neighbours would nearly always agree; by chance one in ten does.
    assert (labels[1:] == labels[:-1]).mean() < 0.2


def test_equal_specs_give_equal_bytes_and_a_finished_set_is_used_again(dataset: data.DataSet, tmp_path: Path):
    other = data.prepare(tmp_path / "again", data.Spec(SAMPLES), quiet)
    assert other.made
    # Everything but the meta pages, which hold the size of the map alone, and unused bytes inside pages.
    assert len(other.file.read_bytes()) == len(dataset.file.read_bytes())
    batches = []
    for one in (dataset, other):
        source = sources.PyLmdb(one.database, 500, 0, 1)
        batches.append([images.copy() for images, _ in source.epoch(0)])
        source.close()
    assert (np.concatenate(batches[0]) == np.concatenate(batches[1])).all()
    assert not data.prepare(other.directory, data.Spec(SAMPLES), quiet).made
    assert data.prepare(other.directory, data.Spec(1000), quiet).made


def test_a_directory_with_other_things_in_it_is_left_alone(place: Path):
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(data.DemoError, match="holds something else"):
        data.prepare(place, data.Spec(1000), quiet)
    assert (place / "thesis.tex").read_text() == "years of work"


def test_an_interrupted_writing_leaves_nothing(place: Path):
    def stop(done: int, every: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.prepare(place / "data", data.Spec(1000), stop)
    assert list(place.iterdir()) == []


def test_a_full_disk_is_an_error_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, place: Path):
    usage = data.shutil.disk_usage(place)
    monkeypatch.setattr(data.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(data.DemoError, match="found 1 MiB"):
        data.prepare(place / "data", data.Spec(1000), quiet)
    assert list(place.iterdir()) == []


# --- sources and model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 300), (3, 64), (4, 125)])
def test_the_skipping_ranks_together_walk_the_file_in_order_and_wrap(dataset, ranks: int, batch_size: int):
    import lmdb

    with (
        lmdb.open(str(dataset.database), readonly=True, lock=False) as environment,
        environment.begin() as read,
    ):
        labels = [datum.decode(value)[1] for _, value in read.cursor()]
    parts: list[list[list[np.ndarray]]] = []
    for rank in range(ranks):  # One after the other: py-lmdb opens a file once per process.
        reader = sources.PyLmdb(dataset.database, batch_size, rank, ranks)
        parts.append([[found.copy() for _, found in reader.epoch(epoch)] for epoch in range(2)])
        reader.close()
    for epoch in range(2):
        steps = list(zip(*(part[epoch] for part in parts), strict=True))
        assert len(steps) == -(-SAMPLES // (batch_size * ranks))
        found = np.concatenate([one for step in steps for one in step])
        assert found.tolist() == [labels[i % SAMPLES] for i in range(len(found))]


def test_the_gradient_is_the_slope_of_the_loss():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 10, 8)
    model = Model(8, 1, seed=0)
    model.learn(images, labels)
    gradient = model.gradient.copy()
    weights = model._weights
    for number in np.argsort(np.abs(gradient[:-1]))[-8:]:
        before, losses = weights[number], []
        for step in (-1e-2, 1e-2):
            weights[number] = before + step
            model.learn(images, labels)
            losses.append(float(model.gradient[-1]))
        weights[number] = before
        assert (losses[1] - losses[0]) / 2e-2 == pytest.approx(float(gradient[number]), rel=0.05, abs=1e-3)


def test_the_model_learns_and_equal_batches_give_equal_bits(dataset: data.DataSet):
    losses = []
    for _ in range(2):
        model, source = Model(100, 1, seed=0), sources.PyLmdb(dataset.database, 100, 0, 1)
        losses.append([])
        for epoch in range(4):
            for images, labels in source.epoch(epoch):
                model.learn(images, labels)
                losses[-1].append(model.step(model.gradient, 0.1))
        source.close()
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-10:]) < 0.5 * np.mean(losses[0][:10])


# --- what the ranks read from ---------------------------------------------------------------------------------------


def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have no FUSE."""
    monkeypatch.setattr(storage.checks, "DEVICE", "/nowhere/fuse")


def test_without_fuse_the_local_disk_is_read_and_the_reason_told(monkeypatch, dataset):
    no_device(monkeypatch)
    choice = storage.choose(None, emulate=True)
    assert "/nowhere/fuse is not there" in str(choice.reason)
    with storage.opened(dataset, choice) as place:
        assert (place.directory, place.cache) == (dataset.directory, dataset.cache)
        assert (place.describe(), place.counted()) == (None, None)
        assert place.reason == choice.reason


def test_a_file_system_that_was_named_is_not_replaced_by_the_local_disk(monkeypatch):
    no_device(monkeypatch)
    with pytest.raises(StorageError, match="/nowhere/fuse is not there"):
        storage.choose("nfs", emulate=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "floppy"}, "floppy"),
        ({"preset": "nfs", "emulate": False}, "expected --pfs or --no-pfs, found both"),
    ],
)
def test_a_wrong_file_system_is_wrong_use_before_data_is_made(capsys, place: Path, options, message):
    assert main(data=place / "data", output=place / "demo.html", **options) == 2
    assert message in capsys.readouterr().err
    assert list(place.iterdir()) == []


@needs_fuse
def test_the_ranks_see_the_data_set_through_one_mount_that_goes_with_the_block(dataset, scratch):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        assert place.reason is None
        assert ours(scratch) == [place.directory]
        told = place.describe()
        assert told["spec"]["name"] == storage.PRESET
        assert told["slow_down"] > 1
        file = place.directory / "train.lmdb" / "data.mdb"
        for _ in range(2):  # Both times all of it, for it is cold both times.
            place.cool()
            assert file.read_bytes() == dataset.file.read_bytes()
            found = place.counted()
            assert found["read_bytes"] >= dataset.file_bytes
            assert found["read_bytes"] == sum(int(size) * count for size, count in found["sizes"].items())
            assert found["mean_read_bytes"] == found["read_bytes"] / found["reads"]
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_a_run_for_which_nothing_reached_the_file_system_is_an_error(dataset, scratch):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        place.cool()
        with pytest.raises(StorageError, match="the page cache was not empty"):
            place.counted()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("insisted", [False, True])
def test_a_refused_mount_leaves_nothing_and_is_an_error_only_where_it_was_named(
    monkeypatch, dataset, scratch, insisted
):
    def refuse(*arguments, **options):
        raise StorageError("mount: Operation not permitted")

    monkeypatch.setattr(pfs.Server, "start", refuse)
    choice = storage.Choice("nfs", insisted=insisted)
    if insisted:
        with pytest.raises(StorageError, match="not permitted"), storage.opened(dataset, choice):
            pass
    else:
        with storage.opened(dataset, choice) as place:
            assert "not permitted" in str(place.reason)
            assert place.directory == dataset.directory
    assert list(scratch.iterdir()) == []


@needs_fuse
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OptionError])
def test_nothing_stays_mounted_after_an_error_or_an_interrupt(dataset, scratch, error):
    def fail() -> None:
        assert len(ours(scratch)) == 1
        raise error("in mid-run")

    with pytest.raises(error), storage.opened(dataset, storage.choose(None, emulate=True)):
        fail()
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_nothing_stays_mounted_when_files_are_still_open(dataset, scratch):
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        descriptor = os.open(place.directory / "held-out.npz", os.O_RDONLY)
    os.close(descriptor)
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []


@needs_fuse
def test_counters_of_somebody_elses_mount_are_left_alone(dataset, scratch):
    theirs = scratch / "theirs"
    theirs.mkdir()
    server = pfs.Server.start(dataset.directory, [theirs], preset=storage.PRESET, slow_down="auto")
    (theirs / "demo.json").read_bytes()
    with (
        pytest.raises(OptionError, match="is mounted already"),
        storage.opened(dataset, storage.choose(None, emulate=True)),
    ):
        pass
    assert ours(scratch) == [theirs]
    assert server.stats()["nodes"][0]["reads"] > 0
    assert list(scratch.iterdir()) == [theirs]


@needs_fuse
@pytest.mark.parametrize("server_too", [False, True])
def test_what_a_killed_demo_left_mounted_is_removed_by_the_next(dataset, scratch, server_too: bool):
    program = (
        "import sys, time; from pathlib import Path; from forebay.demo import data, storage\n"
        f"made = data.prepare(Path({str(dataset.directory)!r}), data.Spec({SAMPLES}), lambda *_: None)\n"
        "with storage.opened(made, storage.choose(None, True)) as place:\n"
        "    print(place.server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        left = ours(scratch)
        assert len(left) == 1
        storage.choose(None, emulate=True)
        assert ours(scratch) == left, "whoever made it lives"
        process.kill()
    if server_too:
        signal.pidfd_send_signal(server, signal.SIGKILL)
    os.close(server)
    assert ours(scratch) == left
    with storage.opened(dataset, storage.choose(None, emulate=True)) as place:
        assert ours(scratch) == [place.directory]
        assert place.directory not in left
    assert list(scratch.iterdir()) == []


# --- launcher -------------------------------------------------------------------------------------------------------


def test_a_missing_launcher_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(
        launch.LaunchError, match=r"(?s)expected a launcher.*hint: pip install 'forebay\[mpi\]'"
    ):
        launch.command(4, ["-c", "pass"])


def test_the_demo_without_mpi_fails_before_it_makes_data(monkeypatch, capsys, place: Path):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert main(data=place / "data", output=place / "demo.html") == 1
    assert "mpi4py is not installed" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_failing_run_shows_the_end_of_its_output():
    with pytest.raises(launch.LaunchError, match=r"(?s)found 3.*the reason"):
        launch.run(
            [sys.executable, "-c", "print('the reason'); exit(3)"], deadline_s=60, progress=lambda done: None
        )


def test_progress_lines_are_told_and_not_shown():
    seen: list[int] = []
    program = f"print('{launch.PROGRESS_MARK} 20'); print('{launch.PROGRESS_MARK} x'); exit(1)"
    with pytest.raises(launch.LaunchError) as error:
        launch.run([sys.executable, "-c", program], deadline_s=60, progress=seen.append)
    assert seen == [20]
    assert "20" not in str(error.value)


def test_a_run_past_its_deadline_is_ended_with_all_its_processes(tmp_path: Path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], process_group=0)\n"
        f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
        "time.sleep(600)"
    )
    with pytest.raises(launch.LaunchError, match="still running"):
        launch.run([sys.executable, "-c", program], deadline_s=3, progress=lambda done: None)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the grandchild is still there")


# --- results and page -----------------------------------------------------------------------------------------------


PFS = {
    "reads": 4321,
    "read_bytes": 4321 * 98304,
    "mean_read_bytes": 98304.0,
    "sequential_reads": 4000,
    "queue_seconds": 12.34,
    "max_in_flight": 77,
    "metadata": 9,
    "sizes": {"98304": 4321},
    "late": False,
}


def outcome(
    *, differing_step: int | None = None, emulated: bool = False, late: bool = False
) -> results.Outcome:
    times = {
        "startup_seconds": 0.1,
        "exposed_seconds": 0.5,
        "compute_seconds": 1.0,
        "skew_seconds": 0.25,
        "communication_seconds": 0.25,
    }
    usage = {
        "cpu_seconds": 1.5, "minor_faults": 1000, "major_faults": 10, "voluntary_switches": 5, "involuntary_switches": 6,
    }  # fmt: skip
    rank = {
        "epochs": [times, times],
        "usage": usage,
        "thread": usage,
        "asked_bytes": 10,
        "read_calls": 3,
        "storage_bytes": 10**6,
    }
    losses = [float(loss) for loss in np.geomspace(2.3, 0.01, 400)]
    runs = []
    for name in ("pylmdb", "sequential", "group"):
        own = list(losses)
        if name == "sequential" and differing_step is not None:
            own[differing_step] += 1e-9
        job = {
            "losses": own,
            "accuracies": [0.5, 0.97],
            "ranks": [rank] * 4,
            "facts": {"explain": "1 < 2 & so on"},
        }
        counted = {**PFS, "late": late} if emulated else None
        runs.append(results.RunResult.read(name, f"Run {name}", job, counted))
    told = {"spec": {"name": "tape", "latency_us": 500.0}, "slow_down": 2.5, "limit_mib_s": 1000.0}
    return results.Outcome(
        samples=200_000, ranks=4, batch_size=125, epochs=2, file_bytes=10**7, prepared_seconds=1.0, held_out_samples=359,
        runs=tuple(runs), pfs=told if emulated else None, pfs_reason=None if emulated else "no <such> device",
    )  # fmt: skip


def test_equal_losses_are_called_identical_and_a_difference_is_named():
    assert outcome().identical
    assert "in all 400 steps" in outcome().verdict()
    different = outcome(differing_step=7)
    assert not different.identical
    assert different.verdict().startswith("DIFFERENT from step 7 on")


def test_the_table_has_every_figure_of_its_storage_and_the_caveat():
    disk, emulated = results.table(outcome()), results.table(outcome(emulated=True))
    for figure in results.FIGURES:
        assert (figure.title in disk) == (figure.emulated is not True), figure.key
        assert (figure.title in emulated) == (figure.emulated is not False), figure.key
    assert results.DISK_CAVEAT in disk
    assert "no <such> device" in disk
    assert "2.5 times slower than tape" in emulated
    assert results.DISK_CAVEAT not in emulated
    for value in ("97.0", "4,321", "424.8", "98.3", "12.34"):
        assert value in emulated


def test_late_replies_are_told_in_table_and_page():
    punctual, late = outcome(emulated=True), outcome(emulated=True, late=True)
    assert results.LATE in results.table(late)
    assert results.LATE in page.render(late)
    assert results.LATE not in results.table(punctual)
    assert results.LATE not in page.render(punctual)


def test_the_parts_of_the_wall_time_add_up():
    found = results.as_json(outcome())["runs"][0]
    parts = ("exposed_seconds", "compute_seconds", "skew_seconds", "communication_seconds")
    assert found["wall_seconds"] == pytest.approx(sum(found[name] for name in parts))
    assert found["training_seconds"] == pytest.approx(found["startup_seconds"] + 2 * found["wall_seconds"])
    for name in parts:
        assert found[name] == pytest.approx(np.mean([epoch[name] for epoch in found["by_epoch"]]))
    json.dumps(found)


@pytest.mark.parametrize("emulated", [False, True])
def test_every_key_of_the_result_is_documented(emulated: bool):
    text = (Path(__file__).parents[1] / "docs/metrics.md").read_text()
    section = text.split("## `forebay demo --json`")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    found = results.as_json(outcome(emulated=emulated))
    run = found["runs"][0]
    assert documented >= found.keys() | run.keys() | (run["pfs"] or {}).keys()
    assert documented >= {"spec", "slow_down", "limit_mib_s"}


class Strict(html.parser.HTMLParser):
    """Notes what a page would fetch, and tags that do not match."""

    void = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.fetched += [
            str(value) for name, value in attributes if name in {"src", "href", "srcset", "data"}
        ]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("emulated", [False, True])
def test_the_page_is_whole_and_fetches_nothing(emulated: bool):
    text = page.render(outcome(emulated=emulated))
    parser = Strict()
    parser.feed(text)
    assert parser.open == []
    assert parser.fetched == []
    for word in ("http:", "https:", "url(", "@import", "<script"):
        assert word not in text
    assert "1 &lt; 2 &amp; so on" in text
    assert "nan" not in text
    assert "identical" in text
    assert "different" in page.render(outcome(differing_step=0, emulated=emulated))
    assert ("What reached the file system" in text) == emulated
    assert ("2.5 times slower than tape" in text) == emulated
    assert ("no &lt;such&gt; device" in text) == (not emulated)


# --- the whole ------------------------------------------------------------------------------------------------------


def test_wrong_use_is_told_apart_from_failure(capsys: pytest.CaptureFixture[str]):
    assert main(ranks=0) == 2
    assert main(samples=10) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.mpi
def test_two_ranks_train_alike_with_py_lmdb_and_with_forebay(place: Path, capsys: pytest.CaptureFixture[str]):
    code = main(
        json=True, ranks=2, samples=SAMPLES, output=place / "demo.html", data=place / "data", emulate=False
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    base, same, group = found["runs"]
    assert base["losses"] == same["losses"]
    assert len(base["losses"]) == 2 * -(-SAMPLES // 500)
    assert group["losses"] != base["losses"]
    assert (found["pfs"], base["pfs"]) == (None, None)
    assert found["pfs_reason"] == "--no-pfs was given"
    assert "--no-pfs was given" in captured.err
    assert (place / "demo.html").stat().st_size > 10_000
    assert [entry.name for entry in place.iterdir()] == ["demo.html"], "the data set was not asked to stay"


@pytest.mark.mpi
@needs_fuse
def test_on_the_emulator_losses_are_identical_and_its_counters_are_what_table_page_and_json_show(
    place: Path, scratch: Path, monkeypatch, capsys
):
    seen = []
    plain_stats, plain_table, tables = pfs.Server.stats, results.table, []

    def stats(server):
        seen.append(plain_stats(server))
        return seen[-1]

    monkeypatch.setattr(pfs.Server, "stats", stats)
    monkeypatch.setattr(page, "render", lambda found: tables.append(plain_table(found)) or render(found))
    code = main(json=True, ranks=2, samples=SAMPLES, output=place / "demo.html", data=place / "data")
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out)
    assert found["losses_identical"]
    assert found["pfs"]["spec"]["name"] == "nfs"
    assert found["pfs_reason"] is None
    shown = (place / "demo.html").read_text()
    assert len(seen) == len(found["runs"]) == 3
    for counted, run in zip(seen, found["runs"], strict=True):
        (node,) = counted["nodes"]
        assert {key: node[key] for key in run["pfs"].keys() - {"mean_read_bytes", "late"}} == {
            key: value for key, value in run["pfs"].items() if key not in {"mean_read_bytes", "late"}
        }
        # Every run begins cold and reads nearly every page, each once: the second epoch comes from the page cache.
        assert 0.9 * found["file_bytes"] < node["read_bytes"] < 1.2 * found["file_bytes"]
        assert [file["file"] for file in counted["files"] if file["reads"]] == ["train.lmdb/data.mdb"]
        for text in (
            f"{node['reads']:,}",
            f"{node['read_bytes'] / 1e6:,.1f}",
            f"{run['pfs']['mean_read_bytes'] / 1e3:,.1f}",
        ):
            assert f"<td>{text}</td>" in shown
            assert text in tables[0]
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert [entry.name for entry in place.iterdir()] == ["demo.html"]


render = page.render


@needs_fuse
@pytest.mark.parametrize("failure", ["ranks", "server", "interrupt"])
def test_a_demo_that_fails_in_mid_run_leaves_nothing_mounted(
    place: Path, scratch: Path, monkeypatch, capsys, failure: str
):
    def fail(arguments, **options):
        mount = Path(arguments[arguments.index("--data") + 1])
        assert ours(scratch) == [mount]
        if failure == "ranks":
            raise launch.LaunchError("training run: a rank died")
        if failure == "interrupt":
            raise KeyboardInterrupt
        # The server dies while the ranks read: they end with an error, and so does the question for its counters.
        process = os.pidfd_open(pfs.Server.of(mount).pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], 60)
        os.close(process)
        raise launch.LaunchError("training run: Transport endpoint is not connected")

    monkeypatch.setattr(conductor.launch, "run", fail)
    assert main(samples=SAMPLES, output=place / "demo.html", data=place / "data") == 1
    message = {
        "ranks": "a rank died",
        "server": "Transport endpoint is not connected",
        "interrupt": "interrupted; ranks ended, nothing left behind",
    }
    assert message[failure] in capsys.readouterr().err
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert list(place.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGINT, ["--no-pfs"]),
        pytest.param(signal.SIGINT, [], marks=needs_fuse),
        pytest.param(signal.SIGTERM, [], marks=needs_fuse),
    ],
)
def test_an_interrupt_ends_the_ranks_and_leaves_nothing(tmp_path: Path, scratch: Path, number: int, options):
    command = [sys.executable, "-m", "forebay.demo", "--samples", "40000", "--ranks", "2", *options]
    command += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "demo.html")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("data set")
    assert process.stderr.readline().startswith("storage")
    needle = str(ours(scratch)[0] if not options else tmp_path / "data").encode()
    while not _processes_with(needle, b"forebay.demo.train"):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(number)
    assert "interrupted" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert not (tmp_path / "data").exists()
    assert ours(scratch) == []
    assert list(scratch.iterdir()) == []
    assert not _processes_with(needle)


def _processes_with(*words: bytes) -> list[int]:
    """Return the processes, but this one, whose command lines contain all words."""
    lines = {pid: _command_line(pid) for pid in launch._processes() if pid != os.getpid()}
    return [pid for pid, line in lines.items() if all(word in line for word in words)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
