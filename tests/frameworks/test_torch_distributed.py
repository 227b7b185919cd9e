"""DistributedDataParallel under torchrun: ranks without options, resumed, on more ranks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

import support
from frameworks.torch_support import SAMPLES, write_samples

GLOBAL_BATCH = 16
STEPS = SAMPLES // GLOBAL_BATCH
EPOCHS = 2
ORDERS = ("shuffle", "group")

# Trains from a checkpoint, if there is one; writes one before the step AT, and continues.
TRAIN = f"""
import json, os, sys
import torch, torch.distributed, torch.nn.parallel
import forebay.torch
from frameworks.torch_support import prepare

source, checkpoints, at, orders = *sys.argv[1:3], json.loads(sys.argv[3]), sys.argv[4:]
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)

def train(loader, first_epoch):
    steps = []
    for epoch in range(first_epoch, {EPOCHS}):
        loader.set_epoch(epoch)
        for batch in loader:
            images, labels = batch
            loss = model(images.flatten(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # The value of an image is its id and a random number of this sample and epoch.
            values = images[:, 0, 0].tolist()
            assert labels.tolist() == [number % 10 for number in batch.indices]
            steps.append([*batch.position, list(zip(batch.indices.tolist(), values))])
            if steps[-1][:2] == at:
                state = dict(epoch=epoch, loader=loader.state_dict(), model=model.state_dict(),
                             optimizer=optimizer.state_dict())
                if rank == 0:
                    torch.save(state, checkpoint)
                torch.distributed.barrier()
    return steps

def resumed(loader):
    state = torch.load(checkpoint)
    loader.load_state_dict(state["loader"])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return train(loader, state["epoch"])

def start_weights():
    torch.nn.init.constant_(model.module.weight, 0.1)
    optimizer.state.clear()

def weights():
    return [float(value) for value in model.module.weight.flatten()]

def loader_for(order):
    return forebay.torch.loader(source, global_batch={GLOBAL_BATCH}, order=order, seed=5, node_memory="32MiB",
                                transform=prepare, workers=2, prefetch=2)

found = {{}}
for order in orders:
    checkpoint, runs = f"{{checkpoints}}/{{order}}.pt", []
    if not os.path.exists(checkpoint):
        start_weights()
        with loader_for(order) as loader:
            runs.append([train(loader, 0), weights()])
    with loader_for(order) as loader:
        runs.append([resumed(loader), weights()])
    found[order] = runs
size = torch.distributed.get_world_size()
with open(f"{{checkpoints}}/rank-{{rank}}-of-{{size}}.json", "w") as file:
    json.dump([len(loader), found], file)
torch.distributed.destroy_process_group()
"""


def torchrun(ranks, script, *arguments):
    """Run a script with torchrun; return what each rank writes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, script, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(support.ROOT / "tests")},
    )
    assert done.returncode == 0, done.stderr
    folder = script.parent
    return [json.loads((folder / f"rank-{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]


def global_steps(ranks):
    """Return epoch, step and the samples of all ranks, for each step of a run."""
    assert len({len(steps) for steps, _ in ranks}) == 1
    merged = []
    for parts in zip(*(steps for steps, _ in ranks), strict=True):
        assert len({tuple(part[:2]) for part in parts}) == 1
        merged.append([*parts[0][:2], sorted(sample for part in parts for sample in part[2])])
    return merged


def test_two_epochs_of_ddp_resumed_at_a_random_step_on_two_and_four_ranks(tmp_path):
    samples = write_samples(tmp_path / "samples.npz")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    place = random.Random(3).randrange(1, EPOCHS * STEPS)
    arguments = [samples, tmp_path, json.dumps(divmod(place - 1, STEPS)), *ORDERS]
    found, on_four = torchrun(2, script, *arguments), torchrun(4, script, *arguments)
    assert {steps for steps, _ in found + on_four} == {STEPS}
    for order in ORDERS:
        first, second = ([runs[order][run] for _, runs in found] for run in (0, 1))
        whole, (_, weights) = global_steps(first), first[0]
        assert [one[:2] for one in whole] == [
            [epoch, step] for epoch in range(EPOCHS) for step in range(STEPS)
        ]
        for epoch in range(EPOCHS):
            ids = [number for one in whole if one[0] == epoch for number, _ in one[2]]
            assert sorted(ids) == list(range(SAMPLES))
        assert [one[2] for one in whole[:STEPS]] != [one[2] for one in whole[STEPS:]]
        assert global_steps(second) == whole[place:]
        assert second[0][1] == weights
        third = [runs[order][0] for _, runs in on_four]
        assert global_steps(third) == whole[place:]
        # The gradients of the same samples are summed in another order.
        assert third[0][1] == pytest.approx(weights, rel=1e-4)
