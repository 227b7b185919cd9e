"""Names that had another meaning or spelling before 0.1.0, and the names of today.

An old name is an error, never an alias: the hint of the error has the name of today. The tables
hold options (arguments, environment variables, keys of configuration files), values of options,
parameters of a strategy, and words of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMMANDS", "OPTIONS", "PARAMETERS", "VALUES", "VARIABLES"]

_ONE_THREAD = "leave it out: one thread of each process writes copies"
_ONE_CHUNK = "leave it out: a copy is written in pieces of 1 MiB"

OPTIONS: Mapping[str, str] = {
    "last": 'it is called last_batch=, "wrap" is called "fill", "short" is called "partial"',
    "epochs": "it is called expected_epochs=",
    "memory": "it is called node_memory=",
    "sample": "it is called transform=",
    "batch": "it is called batch_transform=",
    "threads": "it is called workers=",
    "copy_bytes": _ONE_CHUNK,
    "copy_threads": _ONE_THREAD,
    "processes": 'write workers=n, worker_kind="process"',
}
"""Option → what stands for it today."""

VARIABLES: Mapping[str, str] = {
    "FOREBAY_LAST": "it is called FOREBAY_LAST_BATCH",
    "FOREBAY_EPOCHS": "it is called FOREBAY_EXPECTED_EPOCHS",
    "FOREBAY_MEMORY": "it is called FOREBAY_NODE_MEMORY",
    "FOREBAY_THREADS": "it is called FOREBAY_WORKERS",
    "FOREBAY_COPY_BYTES": _ONE_CHUNK,
    "FOREBAY_COPY_THREADS": _ONE_THREAD,
    "FOREBAY_PROCESSES": "set FOREBAY_WORKERS, and FOREBAY_WORKER_KIND=process",
}
"""Environment variable → what stands for it today."""

VALUES: Mapping[tuple[str, str], str] = {
    ("last_batch", "wrap"): 'it is called "fill"',
    ("last_batch", "short"): 'it is called "partial"',
    ("strategy", "store"): 'write store="auto", which is a separate option',
}
"""Option and its value → what stands for it today."""

PARAMETERS: Mapping[str, str] = {
    "store": "it is an option of the loader: write store= beside strategy=",
    "on_lost": "write store=forebay.Store(on_lost=)",
    "fetch_buffers": "write store=forebay.Store(requests_per_node=)",
    "fetch_bytes": "write store=forebay.Store(request_bytes=)",
}
"""Parameter of a strategy → what stands for it today."""

COMMANDS: Mapping[str, str] = {
    "--beside": "--sidecar-in-dataset",
    "--case": "--variant",
    "--job-ranks": "--world-size",
    "--no-verify": "--skip-verify",
    "--per-node": "--ranks-per-node",
    "--slow-down": "--time-scale",
    "cold": "drop-caches",
}
"""Option of a command, or command of a group → that of today."""
