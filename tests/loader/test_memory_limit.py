"""A limit on memory: a default loader fits within it, and an error names it, never a rank."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from support import record, run_python, write_lmdb

SAMPLES, SAMPLE_BYTES = 2000, 30_000

# Limits the process to what it uses and so many MiB, and goes through an epoch of a loader.
_PROGRAM = """
import dataclasses, json, re, resource, sys
import forebay
import numpy

forebay.Loader  # all that is imported is imported before the limit
path, limit, extra, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
if options.get("strategy") in ("lmdb", "lmm", "lmm-dio"):
    import forebay_lab
    options["strategy"] = forebay_lab.strategy(options["strategy"])
limit_bytes = extra << 20
if limit != "RLIMIT_FSIZE":
    field = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}[limit]
    with open("/proc/self/status") as status:
        limit_bytes += int(re.search(field + r":\\s+(\\d+)", status.read())[1]) * 1024
resource.setrlimit(getattr(resource, limit), (limit_bytes, limit_bytes))
found = {"limit_mib": limit_bytes >> 20}
try:
    with forebay.Loader(path, 64, expected_epochs=1, **options) as loader:
        found["config"] = dataclasses.asdict(loader.config)
        found["samples"] = sorted(int(number) for batch in loader for number in batch.indices)
        found["mapped"] = path.rsplit("/", 1)[-1] in open("/proc/self/maps").read()
except Exception as error:
    found["classes"] = [one.__name__ for one in type(error).__mro__]
    found["message"], _, found["hint"] = str(error).partition("\\nhint: ")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """60 MB of samples."""
    path = tmp_path_factory.mktemp("samples") / "samples.npy"
    values = np.zeros((SAMPLES, SAMPLE_BYTES), np.uint8)
    values[:, 0] = 1
    np.save(path, values)
    return path


def limited(path, extra_mib, limit="RLIMIT_AS", **options):
    done = run_python(_PROGRAM, path, limit, extra_mib, json.dumps(options))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("strategy", ["forebay", "pread", "mmap", "io_uring"])
def test_a_default_loader_works_in_the_address_space_that_a_limit_leaves(path, strategy):
    found = limited(path, 1536, strategy=strategy, last_batch="partial")
    assert found["samples"] == list(range(SAMPLES)), found
    memory = found["config"]["memory"]
    assert memory["budget_bytes"] == memory["bound_bytes"] // 2 <= 768 << 20
    assert (memory["bound"], memory["is_half_of_address_space"]) == ("address_space", True)


def test_a_loader_that_would_like_more_than_the_limit_leaves_takes_less(path):
    wide = {"strategy": "pread", "order": "shuffle", "last_batch": "partial"}
    plenty = limited(path, 4096, **wide)["config"]["memory"]["region_bytes"]
    found = limited(path, 2 * plenty // 3 >> 20, **wide)
    assert found["samples"] == list(range(SAMPLES)), found
    assert found["config"]["memory"]["region_bytes"] < plenty


@pytest.mark.parametrize("strategy", ["forebay", "mmap"])
def test_a_dataset_that_does_not_fit_the_address_space_is_read_and_config_says_so(path, strategy):
    found = limited(path, 200, strategy=strategy, node_memory="40MiB", order="shuffle", last_batch="partial")
    assert found["samples"] == list(range(SAMPLES)), found
    assert not found["mapped"]
    assert found["config"]["reading"]["mapping"] == "none"
    (fallback,) = found["config"]["fallbacks"]
    assert fallback["wanted"] == "mapping"
    assert "RLIMIT_AS" in fallback["reason"]
    assert limited(path, 1000, strategy=strategy, node_memory="40MiB", order="shuffle")["mapped"]


@pytest.mark.parametrize(
    ("limit", "extra_mib", "options"),
    [
        # Less than the least that works, or than twice that; more asked for than is left; so little
        # that nothing at all can be mapped; what the kernel refuses.
        ("RLIMIT_AS", 64, {"strategy": "pread"}),
        ("RLIMIT_AS", 120, {"strategy": "pread"}),
        ("RLIMIT_AS", 300, {"strategy": "pread", "node_memory": "400MiB"}),
        ("RLIMIT_AS", 3, {"strategy": "pread", "order": "shuffle", "node_memory": "2MiB"}),
        ("RLIMIT_AS", 3, {}),
        ("RLIMIT_FSIZE", 1, {}),
    ],
)
def test_a_limit_that_leaves_too_little_is_a_memory_error_that_names_it(path, limit, extra_mib, options):
    found = limited(path, extra_mib, limit, **options)
    assert {"MemoryLimitError", "OptionError", "MemoryError"} <= set(found["classes"]), found
    assert limit in found["message"]
    assert re.search(r"\d+ MiB|shared memory", found["message"])
    assert ("ulimit -f" if limit == "RLIMIT_FSIZE" else "ulimit -v") in found["hint"]


@pytest.mark.parametrize("strategy", ["lmdb", "lmm", "lmm-dio"])
@pytest.mark.full
def test_a_walk_that_needs_a_mapping_names_the_limit_that_forbids_it(tmp_path, strategy):
    container = write_lmdb(tmp_path / "records.lmdb", [record(number, 20_000) for number in range(2000)])
    found = limited(container, 32, strategy=strategy, order="sequential", node_memory="9MiB")
    assert "MemoryLimitError" in found["classes"], found
    assert "RLIMIT_AS" in found["message"]
    assert "ulimit -v" in found["hint"]


@pytest.mark.full
def test_no_limit_on_memory_is_told_as_the_loss_of_a_rank(path):
    # Whatever fails first as the limit falls, a process that is alone has no rank to lose.
    for limit, extra_mib in (("RLIMIT_AS", 1), ("RLIMIT_AS", 13), ("RLIMIT_DATA", 4), ("RLIMIT_DATA", 13)):
        options = {"strategy": "pread", "order": "shuffle", "node_memory": "10MiB"}
        done = run_python(_PROGRAM, path, limit, extra_mib, json.dumps(options))
        assert "PeerLostError" not in done.stdout + done.stderr, done
