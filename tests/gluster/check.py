"""What Forebay does on a GlusterFS mount; run by ``run.sh``, which makes and removes it.

- `forebay verify` finds every sample readable.
- A loader's epoch is what py-lmdb reads from the same bytes on the local disk.
- `forebay bench` runs, where that command is.
- A brick that is killed in mid-read is an error that names the file and the offset, and no hang;
  when the brick is back, the same mount gives every sample again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import lmdb

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import support

SAMPLES = 3000
SAMPLE_BYTES = 50_000

# Watchdogs against hangs [s], never measurements.
RUN_WITHIN_S = 300
ERROR_WITHIN_S = 120
BACK_WITHIN_S = 60

# Prints one line per batch, so that its parent knows that it has begun; ends with the error.
READER = """
import json, sys
import forebay
try:
    with forebay.Loader(sys.argv[1], 16, order="shuffle", world="single", strategy="pread", timeout=60) as loader:
        for batch in loader:
            print(len(batch.indices), flush=True)
    print(json.dumps({"error": None}))
except forebay.ForebayError as error:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(json.dumps({"error": str(error), "kinds": kinds}))
"""

EPOCH = """
import hashlib, json, sys
import forebay
found = {}
with forebay.Loader(sys.argv[1], 16, order="group", world="single", last_batch="partial") as loader:
    for batch in loader:
        for index, sample in zip(batch.indices, batch["data"], strict=True):
            assert int(index) not in found, f"sample {index} came twice"
            found[int(index)] = hashlib.blake2b(bytes(sample), digest_size=16).hexdigest()
print(json.dumps([found[index] for index in range(len(found))]))
"""


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*command: object) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False
    )
    assert done.returncode == 0, f"{command[:4]} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def drop(dataset: Path) -> None:
    """Drop the client's cached pages, so that the next read has to ask the bricks."""
    for path in dataset.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def bricks(command: str) -> dict[int, str]:
    """Return the bricks that run: process → path."""
    root = ElementTree.fromstring(run(*shlex.split(command)))
    found = {}
    for node in root.iter("node"):
        path, process = node.findtext("path", ""), int(node.findtext("pid", "-1"))
        if path.startswith("/") and process > 0 and node.findtext("status") == "1":
            found[process] = path
    return found


def plain_digests(dataset: Path) -> list[str]:
    with (
        lmdb.open(str(dataset), readonly=True, lock=False) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        return [hashlib.blake2b(value, digest_size=16).hexdigest() for _, value in transaction.cursor()]


def check_same_samples(dataset: Path, expected: list[str]) -> None:
    drop(dataset)
    found = json.loads(run(sys.executable, "-c", EPOCH, dataset))
    assert found == expected, "a loader's epoch differs from what py-lmdb reads"


def check_killed_brick(dataset: Path, options: argparse.Namespace) -> None:
    drop(dataset)
    before = bricks(options.bricks)
    assert len(before) == 4, f"expected four bricks, found {before}"
    victim = min(before)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(dataset)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        for _ in range(3):
            assert reader.stdout.readline().strip() == "16"
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        out, err = reader.communicate(timeout=ERROR_WITHIN_S)
    finally:
        reader.kill()
        reader.wait()
    assert out, f"the reader said nothing\n{err}"
    told = json.loads(out.splitlines()[-1])
    assert told["error"], "the reader finished its epoch without a quarter of the file"
    assert "StorageError" in told["kinds"], told
    assert str(dataset) in told["error"], told["error"]
    assert "offset" in told["error"], told["error"]
    print(f"   {time.monotonic() - killed:.1f} s after the kill: {told['error']}")

    say("bring the brick back")
    deadline = time.monotonic() + BACK_WITHIN_S
    # glusterd has to have noticed the death before it starts anything again.
    while len(bricks(options.bricks)) < 4:
        run(*shlex.split(options.restart))
        assert time.monotonic() < deadline, f"the brick did not come back: {bricks(options.bricks)}"
        time.sleep(1)
    # The client notices by itself, a moment after the brick listens again.
    while not readable(dataset):
        assert time.monotonic() < deadline, "the mount did not recover"
        time.sleep(0.5)


def readable(dataset: Path) -> bool:
    drop(dataset)
    try:
        with (dataset / "data.mdb").open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("scratch", "mount", "bricks", "restart"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    forebay = Path(sys.executable).parent / "forebay"
    os.environ["FOREBAY_CACHE_DIR"] = f"{options.scratch}/cache"
    Path(os.environ["FOREBAY_CACHE_DIR"]).mkdir(mode=0o700)

    say(f"write {SAMPLES} samples of {SAMPLE_BYTES} bytes")
    values = [support.record(number, SAMPLE_BYTES) for number in range(SAMPLES)]
    local = support.write_lmdb(Path(options.scratch) / "local.lmdb", values)
    dataset = Path(options.mount) / "train.lmdb"
    dataset.mkdir()
    shutil.copyfile(local / "data.mdb", dataset / "data.mdb")
    expected = plain_digests(local)
    assert len(expected) == SAMPLES

    say("forebay inspect, forebay verify")
    seen = json.loads(run(forebay, "inspect", dataset, "--json"))
    assert not seen["file_system_is_local"], seen["file_system"]
    drop(dataset)
    verified = json.loads(run(forebay, "verify", dataset, "--json"))
    assert (verified["samples"], verified["bad"]) == (SAMPLES, [])

    say("a loader's epoch against py-lmdb's samples")
    check_same_samples(dataset, expected)

    from forebay.cli.commands import COMMANDS

    if "bench" in COMMANDS:
        say("forebay bench")
        # py-lmdb with a lock file per rank: where ranks share one on GlusterFS (10.3), the second
        # waits in F_SETLKW until the first closes, although LMDB has long turned its lock into a
        # shared one; ranks that meet at a barrier wait for ever.
        strategies = "pylmdb-ownlock,pylmdb-ownlock-noreadahead,lmdb,forebay"
        bench = ["bench", dataset, "--ranks", 2, "--strategies", strategies, "--cold", "--json"]
        # It shows that the strategies run here; figures need more repetitions than a test has time
        # for.
        bench += ["--repetitions", 1, "--steps", 20, "--timeout", 120]
        found = json.loads(run(forebay, *bench))
        assert [row["status"] for row in found["rows"]] == ["ok"] * len(found["rows"]), found["rows"]
        assert all(one["equal"] for one in found["verified"]), found["verified"]
        for row in found["rows"]:
            print(f"   {row['name']}: {row['median']['rate_mib_s']:.0f} MiB/s")

    say("kill a brick in mid-read")
    check_killed_brick(dataset, options)
    say("the next run on the same mount")
    check_same_samples(dataset, expected)


if __name__ == "__main__":
    main()
