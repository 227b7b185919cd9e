"""World: who am I, who is beside me, which processes are one job."""

from __future__ import annotations

import json
import os
import sys
import types

import pytest

import forebay
import support
from forebay import OptionError
from forebay._job import processes, slurm
from forebay._job.later import check_ranks
from forebay._job.world import RankInfo, World, identify

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-12@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "99",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}


def auto(environment, **changes):
    return identify(
        "auto", 5, {key: value for key, value in {**environment, **changes}.items() if value is not None}
    )


def test_nothing_in_the_environment_is_a_world_of_one():
    found = auto({})
    assert (found.rank, found.size, found.local_rank, found.local_ranks) == (0, 1, 0, (0,))


@pytest.mark.parametrize(
    ("name", "value"), [("PMI_SIZE", 2), ("PMIX_RANK", 1), ("JSM_NAMESPACE_SIZE", 8), ("PALS_RANKID", 3)]
)
def test_a_process_of_an_unknown_launcher_is_alone_with_a_warning(name, value, says):
    with says(RuntimeWarning, name, value, "world="):
        assert auto({name: str(value)}).size == 1


@pytest.mark.parametrize("environment", [{"PMI_SIZE": "1"}, {"PMI_RANK": "0"}, {"PMIX_RANK": "none"}])
def test_a_process_that_may_be_alone_is_so_without_a_warning(environment):
    assert auto(environment).size == 1
    assert identify("single", 5, {"PMI_SIZE": "2"}).size == 1


def test_two_loaders_of_one_process_are_two_jobs():
    assert auto({}).job != auto({}).job
    assert auto({"RANK": "0", "WORLD_SIZE": "1"}).job != auto({"RANK": "0", "WORLD_SIZE": "1"}).job


def test_open_mpi_on_one_node_needs_no_mpi():
    found = auto(OPEN_MPI)
    assert (found.rank, found.size, found.local_ranks) == (2, 4, (0, 1, 2, 3))
    assert found.job == "prterun-host-12@1"
    assert found.channel is None
    assert "mpi4py.MPI" not in sys.modules


def test_open_mpi_may_number_the_ranks_of_a_node_in_another_order():
    # Mapped by core, with twice as many ranks as cores.
    found = [
        auto(OPEN_MPI, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_RANK=local_rank)
        for rank, local_rank in enumerate("0213")
    ]
    assert [(one.rank, one.local_rank) for one in found] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert {one.local_ranks for one in found} == {(0, 1, 2, 3)}


def test_hydra_names_the_job_by_its_launcher():
    first, second = auto(HYDRA), auto(HYDRA, PMI_RANK="2", MPI_LOCALRANKID="2")
    assert (first.rank, first.size, first.local_ranks) == (1, 3, (0, 1, 2))
    assert first.job == second.job


def test_torchrun_numbers_its_nodes_in_blocks():
    found = auto(TORCHRUN)
    assert (found.rank, found.size, found.local_rank, found.local_ranks) == (5, 8, 1, (4, 5, 6, 7))
    assert found.job == "torchrun-none-0-10.0.0.1-29500"
    assert auto(TORCHRUN, TORCHELASTIC_RESTART_COUNT="1").job != found.job


def test_torchrun_goes_before_mpi_and_mpi_before_slurm():
    assert auto({**TORCHRUN, **OPEN_MPI, **SLURM}).size == 8
    assert auto({**OPEN_MPI, **SLURM}).size == 4
    assert auto(SLURM).size == 11


def test_slurm_counts_only_inside_a_step_and_by_the_tasks_of_the_step():
    found = auto(SLURM)
    assert (found.rank, found.size, found.local_rank, found.local_ranks) == (5, 11, 1, (4, 5, 6, 7))
    assert found.job == "slurm--77-3"
    assert auto(SLURM, SLURM_STEP_ID=None).size == 1
    assert auto(SLURM, SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0").size == 1


def test_slurm_with_a_cyclic_distribution_is_recognised(says):
    found = auto(SLURM, SLURM_PROCID="4", SLURM_LOCALID="1", SLURM_NODEID="1")
    assert found.local_ranks == (1, 4, 7, 10)
    with says(forebay.OptionError):
        auto(SLURM, SLURM_PROCID="6", SLURM_LOCALID="0")


def test_a_rank_that_fits_two_distributions_of_slurm_takes_the_one_that_is_stated():
    first = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    assert auto(SLURM, **first).local_ranks == (0, 1, 2, 3)
    assert auto(SLURM, **first, SLURM_DISTRIBUTION="cyclic:block").local_ranks == (0, 3, 6, 9)


def test_slurm_says_itself_which_ranks_are_on_a_node():
    assert auto(SLURM, SLURM_GTIDS="2,5,7,9", SLURM_NODEID="0").local_ranks == (2, 5, 7, 9)
    # What does not hold this rank in its place is not believed.
    assert auto(SLURM, SLURM_GTIDS="1,2,3,4").local_ranks == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("text", "tasks"), [("4(x2),3", [4, 4, 3]), ("1", [1]), ("2,1(x3)", [2, 1, 1, 1]), ("", [])]
)
def test_slurm_repeats_counts(text, tasks):
    assert slurm.tasks_per_node(text) == tasks


def test_slurm_repeats_no_more_than_there_can_be(says):
    with says(forebay.OptionError, "SLURM_STEP_TASKS_PER_NODE", 1048576):
        slurm.tasks_per_node("1(x99999999)")


def test_layouts_place_every_rank_once():
    for tasks in ([1], [4, 4, 3], [3, 1, 5], [2, 0, 1]):
        for layout in (slurm.block_layout(tasks), slurm.cyclic_layout(tasks)):
            assert [len(ranks) for ranks in layout] == tasks
            assert sorted(rank for ranks in layout for rank in ranks) == list(range(sum(tasks)))


@pytest.mark.parametrize(
    ("environment", "values"),
    [
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "4"},
            ("OMPI_COMM_WORLD_RANK", 4, "OMPI_COMM_WORLD_SIZE"),
        ),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "x"}, ("OMPI_COMM_WORLD_SIZE", "x")),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "4"},
            ("OMPI_COMM_WORLD_LOCAL_RANK", 4, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ),
        ({**TORCHRUN, "RANK": "8"}, ("RANK", 8, "WORLD_SIZE")),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, ("LOCAL_RANK", 4, "LOCAL_WORLD_SIZE")),
        ({**TORCHRUN, "LOCAL_RANK": "3", "RANK": "1"}, (1, 8, 3, 4)),
        ({**SLURM, "SLURM_PROCID": "11"}, ("SLURM_PROCID", 11, "SLURM_STEP_NUM_TASKS")),
        (
            {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4"},
            ("SLURM_STEP_TASKS_PER_NODE", 4, 11),
        ),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4x2"}, (4, 3, "4x2")),
    ],
)
def test_an_environment_that_contradicts_itself_is_told(environment, values, says):
    with says(forebay.OptionError, *values):
        auto(environment)


def test_torchrun_without_local_ranks_is_told_what_to_set(says):
    with says(forebay.OptionError, "LOCAL_WORLD_SIZE", "world="):
        auto(TORCHRUN, LOCAL_WORLD_SIZE=None)


@pytest.mark.parametrize("world", ["torchrun", "slurm"])
def test_a_world_that_was_asked_for_but_is_absent_is_told(world, says):
    with says(forebay.OptionError, "world=", "auto", world):
        identify(world, 5, {})


def test_mpi_asked_for_but_not_installed_is_told_how_to_install(monkeypatch, says):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with says(forebay.OptionError, "world=", "mpi"):
        identify("mpi", 5, {})


def test_mpi_asked_for_without_a_launcher_is_told_how_to_launch():
    code = 'from forebay._job.world import identify; identify("mpi", 5)'
    done = support.run_python(code, environment={**support.MPI_ENVIRONMENT, "OMPI_MCA_btl": "self,sm"})
    assert 'OptionError: world="mpi": no MPI launcher started this process' in done.stderr
    assert "hint:" in done.stderr
    assert "mpiexec" in done.stderr


def test_a_library_under_a_foreign_launcher_is_told_with_both_sizes(monkeypatch, says):
    mpi = types.SimpleNamespace(
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        COMM_WORLD=types.SimpleNamespace(size=1),
        Get_library_version=lambda: "Open MPI v5.0.11, package\nmore",
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    with says(forebay.OptionError, 3, 1):
        auto(HYDRA)


@pytest.mark.parametrize("world", ["auto", "single", "torchrun"])
@pytest.mark.parametrize("environment", [{}, TORCHRUN])
def test_a_worker_of_a_torch_data_loader_is_refused(monkeypatch, world, environment, says):
    data = types.SimpleNamespace(get_worker_info=lambda: types.SimpleNamespace(id=1, num_workers=4))
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    with says(OptionError, 1, 4, "num_workers", 0):
        identify(world, 1, environment)
    own = identify(World(rank=1, size=4, job="workers"), 1, environment)
    assert (own.rank, own.size) == (1, 4)
    monkeypatch.setitem(sys.modules, "torch.utils.data", types.SimpleNamespace(get_worker_info=lambda: None))
    assert identify("single", 1, environment).size == 1


def test_torch_distributed_goes_before_the_environment(monkeypatch):
    distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 1,
        get_world_size=lambda: 3,
    )

    def gather(everyone, own):
        other = ("somewhere else", "token of another")
        everyone[:] = [(own[0], "token of rank 0"), own, other]

    distributed.all_gather_object = gather
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))
    found = auto(OPEN_MPI)
    assert (found.rank, found.size, found.local_ranks, found.job) == (1, 3, (0, 1), "torch-token of rank 0")
    for key, value in {**TORCHRUN, "RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(key, value)
    assert auto(OPEN_MPI).job.startswith("torchrun-")


# --- ranks that a framework states after the loader was made ---


def torch_with(rank, size):
    return types.SimpleNamespace(
        distributed=types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: size > 0,
            get_rank=lambda: rank,
            get_world_size=lambda: size,
        )
    )


def jax_with(rank, size):
    return types.SimpleNamespace(
        distributed=types.SimpleNamespace(is_initialized=lambda: size > 0),
        process_index=lambda: rank,
        process_count=lambda: size,
    )


def tf_config(kind, index, **hosts):
    cluster = {name: [f"host:{port}" for port in range(count)] for name, count in hosts.items()}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


# Each states rank 1 of 2.
LATER = {
    "torch": (torch_with(1, 2), {}),
    "jax": (jax_with(1, 2), {}),
    "tensorflow": (types.SimpleNamespace(), tf_config("worker", 0, chief=1, worker=1)),
}


@pytest.mark.parametrize("framework", LATER)
def test_a_framework_that_states_other_ranks_later_is_an_error(monkeypatch, framework, says):
    module, environment = LATER[framework]
    two = {**HYDRA, "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    alone, same, other = auto({}), auto(two), auto(two, PMI_RANK="0", MPI_LOCALRANKID="0")
    check_ranks("train", alone, environment)
    monkeypatch.setitem(sys.modules, framework, module)
    check_ranks("train", same, environment)
    with says(OptionError, "train", 1, 2, "world=forebay", 'world="single"'):
        check_ranks("train", alone, environment)
    with pytest.raises(OptionError, match=r"rank 0 of 2 .* rank 1 of 2"):
        check_ranks("train", other, environment)


@pytest.mark.parametrize(
    ("framework", "module", "environment"),
    [
        ("torch", torch_with(0, 0), {}),
        ("torch", types.SimpleNamespace(), {}),
        ("jax", jax_with(1, 0), {}),
        ("jax", jax_with(0, 1), {}),
        ("jax", types.SimpleNamespace(), {}),
        ("tensorflow", None, {}),
        ("tensorflow", None, {"TF_CONFIG": "no JSON"}),
        ("tensorflow", None, {"TF_CONFIG": '{"cluster": [], "task": 3}'}),
        ("tensorflow", None, tf_config("worker", 0, worker=1)),
        # The coordinator alone reads for the workers; an evaluator reads for itself.
        ("tensorflow", None, tf_config("chief", 0, chief=1, worker=2, ps=1)),
        ("tensorflow", None, tf_config("evaluator", 0, worker=2)),
    ],
)
def test_a_framework_without_several_ranks_says_nothing_about_a_loader(
    monkeypatch, framework, module, environment
):
    monkeypatch.setitem(sys.modules, framework, module)
    check_ranks("train", auto({}), environment)


def test_a_loader_compares_its_ranks_when_an_epoch_begins(monkeypatch, small_lmdb):
    def read(**options):
        with forebay.Loader(small_lmdb, 10, node_memory="16MiB", **options) as loader:
            next(iter(loader))
            # Meanwhile the script makes a process group.
            monkeypatch.setitem(sys.modules, "torch", torch_with(1, 2))
            try:
                return len(next(iter(loader)).indices)
            finally:
                monkeypatch.delitem(sys.modules, "torch")

    for world in (None, "auto"):
        with pytest.raises(OptionError, match=r"torch\.distributed now has rank 1 of 2"):
            read(world=world)
    # What the script states is believed.
    assert [read(world=world) for world in ("single", World())] == [10, 10]


# --- explicit worlds ---


def explicit(**arguments) -> RankInfo:
    return identify(forebay.World(**arguments), 5, {})


def test_an_explicit_world_is_on_one_node_unless_it_says_otherwise():
    found = explicit(rank=2, size=4)
    assert (found.local_rank, found.local_ranks) == (2, (0, 1, 2, 3))
    found = explicit(rank=5, size=8, local_rank=1, local_size=4, node="b", job="j")
    assert (found.local_rank, found.local_ranks, found.node, found.job) == (1, (4, 5, 6, 7), "b", "j")
    assert explicit(rank=5, size=8, local_rank=1, local_size=2, local_ranks=[1, 5]).local_ranks == (1, 5)


def test_processes_of_one_parent_are_one_job():
    assert explicit(rank=0, size=2).job == explicit(rank=1, size=2).job


def test_the_job_can_come_from_the_environment():
    assert identify(forebay.World(rank=0, size=2), 5, {"FOREBAY_JOB": "mine"}).job == "mine"
    assert auto(OPEN_MPI, FOREBAY_JOB="mine").job == "mine"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"rank": 4, "size": 4}, (4, 0)),
        ({"rank": -1, "size": 4}, (-1, 4)),
        ({"rank": 0, "size": 0}, (1, 0)),
        ({"rank": 0.5, "size": 2}, ("0.5",)),
        ({"rank": 0, "size": 2, "local_rank": 0}, ("local_rank", "local_size")),
        ({"rank": 0, "size": 2, "local_rank": 2, "local_size": 2}, ("local_rank", 2, "local_size")),
        ({"rank": 0, "size": 2, "local_rank": 0, "local_size": 3}, ("local_size", 3, 2)),
        (
            {"rank": 0, "size": 4, "local_rank": 1, "local_size": 2},
            (0, 4, 1, 2),
        ),
        (
            {"rank": 1, "size": 4, "local_rank": 0, "local_size": 2, "local_ranks": (2, 1)},
            (1, "local_rank", 0),
        ),
    ],
)
def test_a_world_that_contradicts_itself_is_told(arguments, values, says):
    with says(forebay.OptionError, *values):
        explicit(**arguments)


def test_a_communicator_that_says_otherwise_is_told(says):
    comm = types.SimpleNamespace(rank=1, size=2)
    with says(forebay.OptionError, 0, 2, 1):
        forebay.World(rank=0, size=2, comm=comm)
    with says(forebay.OptionError):
        explicit(rank=1, size=2, comm=comm)


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ({50: ("bash", 40, "7"), 40: ("mpiexec", 30, "9"), 30: ("mpiexec", 1, "1")}, "40-9"),
        ({50: ("bash", 40, "7"), 40: ("sshd", 1, "9")}, "50-7"),
    ],
    ids=["below a shell", "nowhere"],
)
def test_the_nearest_launcher_above_is_found_and_else_the_parent_stands_for_it(monkeypatch, above, expected):
    monkeypatch.setattr(os, "getppid", lambda: 50)
    monkeypatch.setattr(processes, "parent_and_start", above.__getitem__)
    assert processes.launcher_process() == expected


def test_a_process_has_a_name_a_parent_and_a_start():
    name, parent, start = processes.parent_and_start(os.getpid())
    assert (parent, start.isdigit(), bool(name)) == (os.getppid(), True, True)


# --- with MPI ---

WHO = """
import forebay._job.world
found = forebay._job.world.identify(WORLD, 60)
imported = "mpi4py.MPI" in sys.modules
emit([found.rank, found.size, list(found.local_ranks), found.node, found.job, found.channel is not None, imported])
"""


@pytest.mark.mpi
def test_mpi_ranks_on_one_node_find_each_other_without_mpi():
    found = support.run_mpi(3, WHO.replace("WORLD", '"auto"'))
    assert [(rank, size, local) for rank, size, local, *_ in found] == [
        (rank, 3, [0, 1, 2]) for rank in range(3)
    ]
    assert len({job for *_, job, _, _ in found}) == 1
    assert not any(comm or imported for *_, comm, imported in found)


@pytest.mark.mpi
def test_mpi_ranks_on_emulated_nodes_tell_each_other_where_they_are():
    code = 'import os\nos.environ["FOREBAY_NODE"] = str(int(os.environ["OMPI_COMM_WORLD_RANK"]) % 2)\n'
    found = support.run_mpi(4, code + WHO.replace("WORLD", '"mpi"'))
    assert [local for _, _, local, *_ in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [node for *_, node, _, _, _ in found] == ["0", "1", "0", "1"]
    assert len({job for *_, job, _, _ in found}) == 1
    assert all(comm for *_, comm, _ in found)


@pytest.mark.mpi
def test_a_world_with_a_communicator_takes_its_nodes_by_name():
    code = "from mpi4py import MPI\nimport forebay\nc = MPI.COMM_WORLD\n"
    world = "forebay.World(rank=c.rank, size=c.size, comm=c, node=c.rank // 2)"
    found = support.run_mpi(4, code + WHO.replace("WORLD", world))
    assert [local for _, _, local, *_ in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.mpi
def test_ranks_that_do_not_come_are_an_error_after_the_deadline(tmp_path):
    code = """
from mpi4py import MPI
import forebay, time
from forebay._job.channel import compare
from forebay._job.mpi import MpiChannel
if MPI.COMM_WORLD.rank == 0:
    try:
        MpiChannel.of(MPI.COMM_WORLD, 0.3)
    except forebay.RendezvousError as error:
        emit(str(error))
    open(sys.argv[1], "w").close()
else:
    # The launcher would end rank 0 with it.
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
os._exit(0)
"""
    done = support.start_mpi(2, code, tmp_path / "told")
    lines = [
        json.loads(line.removeprefix("EMIT ")) for line in done.stdout.splitlines() if line.startswith("EMIT")
    ]
    what = "duplicating the communicator: not all of the 2 ranks came within 0.3 s; this is rank 0; missing: rank 1"
    assert [0, what] in lines


@pytest.mark.mpi
def test_ranks_that_disagree_are_told_on_what_and_who():
    code = """
from mpi4py import MPI
import forebay
from forebay._job.channel import compare
from forebay._job.mpi import MpiChannel
c = MPI.COMM_WORLD
channel = MpiChannel.of(c, 60)
compare(channel, {"seed": 1}, 60)
try:
    compare(channel, {"seed": 1, "batch_size": 8 if c.rank < 2 else 9}, 60)
except forebay.RendezvousError as error:
    emit(str(error).splitlines()[0])
"""
    assert support.run_mpi(3, code) == ["the ranks disagree on batch_size: 8 on rank 0, 9 on rank 2"] * 3


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("error", "kind"), [("ValueError", "RendezvousError"), ("PeerLostError", "PeerLostError")]
)
def test_ranks_raise_a_loss_only_where_the_one_that_gives_up_has_seen_one(error, kind):
    code = f"""
from mpi4py import MPI
import forebay
from forebay import PeerLostError
from forebay._job.mpi import MpiChannel
c = MPI.COMM_WORLD
channel = MpiChannel.of(c, 60)
if c.rank == 1:
    channel.give_up({error}("on purpose"))
    emit("{kind}")
else:
    try:
        channel.gather(b"a", "testing", 60)
    except forebay.ForebayError as raised:
        emit(type(raised).__name__)
"""
    assert support.run_mpi(3, code) == [kind] * 3
