"""The job scripts of docs/schedulers.md run, with programs that stand for the schedulers'."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forebay
import support
from forebay._job.world import identify

PAGE = (support.ROOT / "docs/schedulers.md").read_text()
SCRIPTS = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
SAMPLES = 100

TRAIN = f"""
import json, warnings
from pathlib import Path
import forebay
warnings.simplefilter("error")
with forebay.Loader("train.npy", global_batch=16, order="shuffle", last_batch="partial", expected_epochs=1,
                    timeout=60) as loader:
    ids = [sample for batch in loader for sample in batch.indices.tolist()]
    tiered = loader.config.tiers is not None
world = loader.world
Path(f"rank-{{world.rank}}").write_text(json.dumps([world.size, world.node, world.source, tiered, ids]))
assert len(loader.dataset) == {SAMPLES}
"""

# Each node gets a tier of its own, as it would have.
COMMON = """
import os, subprocess, sys

def start(words, node, **variables):
    environment = os.environ | {"FOREBAY_NODE": node} | variables
    if "FOREBAY_TIERS" in environment:
        path, size = environment["FOREBAY_TIERS"].split(":")
        os.makedirs(f"{path}/{node}", exist_ok=True)
        environment["FOREBAY_TIERS"] = f"{path}/{node}:{size}"
    return subprocess.Popen(words, env=environment)

def end(processes):
    sys.exit(max(process.wait() for process in processes))
"""
PROGRAMS = {
    # Options have the form --name=value here; blocks of tasks per node.
    "srun": """
options = [word for word in sys.argv[1:] if word.startswith("--")][: next(
    place for place, word in enumerate(sys.argv[1:]) if not word.startswith("--"))]
words, stated = sys.argv[1 + len(options):], dict(one[2:].split("=") for one in options)
nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
tasks = int(stated.get("ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
assert stated.get("ntasks", str(nodes * tasks)) == str(nodes * tasks)
assert os.environ["SRUN_CPUS_PER_TASK"] == os.environ["SLURM_CPUS_PER_TASK"]
end([start(words, f"node{rank // tasks}", SLURM_PROCID=str(rank), SLURM_STEP_ID="0",
    SLURM_STEP_NUM_TASKS=str(nodes * tasks), SLURM_NODEID=str(rank // tasks), SLURM_LOCALID=str(rank % tasks),
    SLURM_STEP_TASKS_PER_NODE=f"{tasks}(x{nodes})", SLURM_STEP_NODELIST="localhost,node1")
    for rank in range(nodes * tasks)])
""",
    "scontrol": """
assert sys.argv[1:] == ["show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
print("localhost\\nnode1")
""",
    # Ranks as torchrun numbers them; the rendezvous is that of the test.
    "torchrun": """
words = sys.argv[1:]
stated = dict(zip(words[:-1:2], words[1:-1:2]))
nodes, ranks = int(stated["--nnodes"]), int(stated["--nproc-per-node"])
host, port = stated["--rdzv-endpoint"].split(":")
node = int(os.environ["FOREBAY_NODE"][-1])
end([subprocess.Popen([sys.executable, words[-1]], env=os.environ | {"RANK": str(node * ranks + rank),
    "WORLD_SIZE": str(nodes * ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
    "MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": stated["--rdzv-id"]})
    for rank in range(ranks)])
""",
    "pbs_tmrsh": "end([start(sys.argv[2:], sys.argv[1])])",
    "blaunch": "end([start(sys.argv[2:], sys.argv[1])])",
}


def script(*marks: str) -> str:
    """Return the one script of the page with all of these marks, for two ranks per node."""
    (found,) = [text for text in SCRIPTS if all(mark in text for mark in marks)]
    return re.sub(r"--nproc-per-node 4", "--nproc-per-node 2", found)


@pytest.fixture
def cluster(tmp_path, daemon):
    """A directory with data, a script's environment, and the programs of the schedulers."""
    programs, work = tmp_path / "programs", tmp_path / "work"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!{sys.executable}\n{COMMON}{text}")
        (programs / name).chmod(0o755)
    (work / ".venv/bin").mkdir(parents=True)
    (work / ".venv/bin/activate").write_text("")
    (work / "train.py").write_text(TRAIN)
    np.save(work / "train.npy", np.zeros((SAMPLES, 8)))
    (tmp_path / "scratch").mkdir()
    return work


def run(work: Path, text: str, **variables: str) -> list[tuple[int, str, str, bool, list[int]]]:
    """Run a job script; return what each rank found: size, node, source, tiers, sample ids."""
    scratch = work.parent / "scratch"
    (work / "train.sh").write_text(text.replace("/scratch/$USER", str(scratch)).replace(":100GiB", ":16MiB"))
    path = os.pathsep.join(
        [str(work.parent / "programs"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    done = subprocess.run(
        ["bash", "-e", "train.sh"],
        cwd=work,
        env={**os.environ, **support.MPI_ENVIRONMENT, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(path.read_text()) for path in sorted(work.glob("rank-*"))]
    assert sorted(sample for *_, ids in found for sample in ids) == list(range(SAMPLES)), done.stderr
    assert {size for size, *_ in found} == {len(found)}
    return found


def nodes_and_sources(found):
    return [node for _, node, *_ in found], {source for _, _, source, *_ in found}


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "localhost,node1",
    "SLURM_CPUS_PER_TASK": "8",
}


def test_the_script_for_slurm_runs(cluster):
    found = run(cluster, script("#SBATCH", "srun python"), **SLURM, SLURM_NTASKS_PER_NODE="2")
    assert nodes_and_sources(found) == (["node0", "node0", "node1", "node1"], {"SLURM's environment"})
    assert all(tiered for _, _, _, tiered, _ in found)


def test_the_script_for_torchrun_in_slurm_runs(cluster):
    found = run(cluster, script("#SBATCH", "srun torchrun"), **SLURM, SLURM_NTASKS_PER_NODE="1")
    assert nodes_and_sources(found) == (["node0", "node0", "node1", "node1"], {"torchrun's environment"})


@pytest.mark.parametrize(
    ("mark", "variable"), [("#PBS", "PBS_NODEFILE"), ("#BSUB", "LSB_DJOB_HOSTFILE")], ids=["pbs", "lsf"]
)
def test_the_scripts_for_mpi_in_pbs_and_lsf_run(cluster, mark, variable):
    (cluster / "hosts").write_text("localhost\nlocalhost\n")
    found = run(
        cluster, script(mark, "mpiexec"), **{variable: str(cluster / "hosts"), "PBS_O_WORKDIR": str(cluster)}
    )
    assert [size for size, *_ in found] == [2, 2]
    assert {source for _, _, source, *_ in found} == {"the environment of Open MPI's launcher"}
    assert all(tiered for _, _, _, tiered, _ in found)


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_the_script_for_torchrun_in_pbs_and_lsf_runs(cluster, variable):
    (cluster / "hosts").write_text("node1\nnode0\nnode1\nnode0\n")
    found = run(
        cluster,
        script("pbs_tmrsh", "blaunch", "torchrun"),
        **{variable: str(cluster / "hosts"), "PBS_O_WORKDIR": str(cluster)},
    )
    assert nodes_and_sources(found) == (["node0", "node0", "node1", "node1"], {"torchrun's environment"})


def test_every_script_of_the_page_is_run_by_a_test():
    # SLURM, PBS, LSF, torchrun in SLURM, torchrun in PBS and LSF.
    assert len(SCRIPTS) == 5


def test_the_code_for_other_launchers_states_the_rank(monkeypatch):
    (text,) = [
        text
        for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        if "FLUX" in text
    ]
    flux = {"FLUX_TASK_RANK": "5", "FLUX_JOB_SIZE": "8", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_ID": "f7"}
    for name, value in flux.items():
        monkeypatch.setenv(name, value)
    names = {"forebay": forebay}
    exec(text.partition("loader =")[0], names)
    found = identify(names["world"], 5)
    assert (found.rank, found.size, found.local_ranks, found.job) == (5, 8, (4, 5, 6, 7), "f7")


def test_the_page_has_each_variable_that_is_read_and_no_other():
    source = "".join(
        (support.ROOT / f"python/forebay/_job/{name}.py").read_text()
        for name in ("torchrun", "mpi_launch", "slurm")
    )
    read = set(re.findall(r"""["']([A-Z]+(?:_[A-Z]+)+|RANK)["']""", source))
    table = PAGE.partition("## What Forebay reads")[2].partition("\n\nAn initialised")[0]
    assert set(re.findall(r"`([A-Z_]+)`", table)) == read
