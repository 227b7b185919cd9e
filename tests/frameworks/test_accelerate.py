"""Accelerate: each process reads its part, states keep the position; and the Trainer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import types

import pytest
import torch
import torch.utils.data

import forebay
import forebay.torch
import support
from frameworks.torch_support import BATCH, SAMPLES, STEPS, epochs_of, ids_of, plain_loader, write_samples

accelerate = pytest.importorskip("accelerate", reason="accelerate could not be had")

from accelerate.data_loader import DataLoaderDispatcher  # noqa: E402

# Accelerate and transformers warn of their own code.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def samples(tmp_path):
    return write_samples(tmp_path / "samples.npz")


@pytest.fixture
def accelerator():
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=5)
    accelerate.state.AcceleratorState._reset_state(True)


@pytest.fixture
def prepared(accelerator, samples):
    prepared = forebay.torch.prepare(accelerator, plain_loader(samples))
    with prepared.dataset:
        yield prepared


@pytest.fixture
def expected(samples):
    with plain_loader(samples, name="expected") as plain:
        return epochs_of(plain, 3)


def test_epochs_are_those_of_the_loader_and_gradients_are_complete_at_their_ends(
    accelerator, prepared, expected
):
    model = torch.nn.Linear(1, 1)
    assert len(prepared) == STEPS
    for epoch in range(2):
        synced = []
        for step, batch in enumerate(prepared):
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            assert ids_of(batch) == expected[epoch][step]
        assert [step for step, is_synced in enumerate(synced) if is_synced] == [4, 9, STEPS - 1]


@pytest.mark.parametrize("step", [1, 5, STEPS])
def test_save_state_and_load_state_keep_the_position(tmp_path, accelerator, prepared, expected, step):
    assert epochs_of(prepared, 1) == expected[:1]
    for number, _ in enumerate(prepared, 1):
        if number == step:
            accelerator.save_state(str(tmp_path / "state"))
            break
    assert ids_of(next(iter(prepared))) == expected[1][0]
    for _ in range(2):
        accelerator.load_state(str(tmp_path / "state"))
        rest = [expected[1][step:], expected[2]] if step < STEPS else [expected[2]]
        assert epochs_of(prepared, len(rest)) == rest


def test_skip_first_batches_counts_from_the_start_of_the_epoch(tmp_path, accelerator, prepared, expected):
    assert epochs_of(prepared, 1) == expected[:1]
    assert epochs_of(accelerator.skip_first_batches(prepared, 5), 1) == [expected[1][5:]]
    # Also after a state of that epoch, as the guide of Accelerate has it.
    prepared.set_epoch(1)
    for _, _ in zip(range(5), prepared, strict=False):
        accelerator.save_state(str(tmp_path / "state"))
    accelerator.load_state(str(tmp_path / "state"))
    skipped = accelerator.skip_first_batches(prepared, 7)
    batches = iter(skipped)
    assert ids_of(next(batches)) == expected[1][7]
    assert prepared.state_dict()["step"] == 8
    assert [ids_of(batch) for batch in batches] == expected[1][8:]


def test_what_accelerate_prepares_of_a_dataloader_delivers_the_batches(accelerator, samples, expected):
    with forebay.torch.dataset(plain_loader(samples)) as dataset:
        prepared = accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=None))
        assert type(prepared) is DataLoaderDispatcher
        # It makes them anew.
        labels = [batch["label"].tolist() for batch in prepared]
    assert labels == [[number % 10 for number in ids] for ids in expected[0]]


def test_reading_on_one_process_for_all_is_refused_where_ranks_have_parts(accelerator, samples, monkeypatch):
    # The first of two nodes, which goes on without the other.
    monkeypatch.setenv("FOREBAY_JOB_ADDRESS", "none")
    world = forebay.World(rank=0, size=2, local_rank=0, local_size=1, node=0, job="dispatch")
    with forebay.torch.dataset(plain_loader(samples, world=world)) as dataset:
        prepared = accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=None))
        with pytest.raises(forebay.OptionError, match=r"forebay\.torch\.prepare"):
            next(iter(prepared))
        assert len(next(iter(dataset))["label"]) == BATCH


def test_processes_that_share_a_model_are_not_given_different_samples(samples, accelerator):
    config = types.SimpleNamespace(non_data_parallel_size=2)
    sharing = types.SimpleNamespace(
        parallelism_config=config, num_processes=1, device=accelerator.device, prepare=accelerator.prepare
    )
    with pytest.raises(forebay.OptionError, match=r"world=forebay\.World"):
        forebay.torch.prepare(sharing, samples, BATCH, node_memory="16MiB")
    # One rank for both of them.
    sharing.num_processes = 2
    with forebay.torch.prepare(sharing, samples, BATCH, node_memory="16MiB").dataset as dataset:
        assert len(dataset) == STEPS


# Two processes, as `accelerate launch` starts them.
TRAIN = """
import json, sys
import accelerate, torch
import forebay.torch

source, out = sys.argv[1:]
accelerator = accelerate.Accelerator(cpu=True)
loader = forebay.torch.prepare(accelerator, source, 8, order="shuffle", seed=3)
model = accelerator.prepare(torch.nn.Linear(16, 1))
steps = []
for batch in loader:
    model(batch["image"].flatten(1)).mean().backward()
    steps.append(batch.indices.tolist())
    if len(steps) == 2:
        accelerator.save_state(out)
        accelerator.wait_for_everyone()
accelerator.load_state(out)
again = [batch.indices.tolist() for batch in loader]
# 96 samples in steps of 14.
valid = forebay.torch.prepare(accelerator, source, 7, order="sequential", last_batch="fill", name="valid")
gathered = [accelerator.gather_for_metrics(batch["image"][:, 0, 0]).tolist() for batch in valid]
with open(f"{out}-{accelerator.process_index}.json", "w") as file:
    json.dump([loader.dataset.loader.loader.world.size, steps, again, sum(gathered, [])], file)
accelerator.end_training()
"""


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def test_each_of_two_processes_reads_its_part(tmp_path, samples):
    port, out = free_port(), tmp_path / "state"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, samples, out],
            env={**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "localhost", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    for rank in ranks:
        _, errors = rank.communicate(timeout=support.DEADLINE_S)
        assert rank.returncode == 0, errors
    found = [json.loads((tmp_path / f"state-{rank}.json").read_text()) for rank in range(2)]
    for size, steps, again, gathered in found:
        assert (size, len(steps)) == (2, STEPS // 2)
        assert again == steps[2:]
        assert sorted(gathered) == list(range(SAMPLES))
    assert sorted(number for _, steps, *_ in found for ids in steps for number in ids) == list(range(SAMPLES))


class Model(torch.nn.Module):
    """A linear model that keeps the labels of each step."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.steps = []

    def forward(self, image, label):
        self.steps.append(label.tolist())
        return {"loss": self.layer(image.flatten(1)).square().mean()}


def test_a_trainer_that_is_resumed_continues_with_the_next_batch(tmp_path, samples, expected):
    transformers = pytest.importorskip("transformers", reason="transformers could not be had")

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return forebay.torch.prepare(self.accelerator, plain_loader(samples, name=f"train-{id(self)}"))

    def trained(checkpoint=None):
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            num_train_epochs=3,
            save_steps=8,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        model = Model()
        Trainer(model, arguments).train(resume_from_checkpoint=checkpoint)
        return model.steps

    steps = [[number % 10 for number in ids] for epoch in expected for ids in epoch]
    assert trained() == steps
    for at in (8, 16):
        assert trained(str(tmp_path / f"out/checkpoint-{at}")) == steps[at:]
