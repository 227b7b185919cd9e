"""One rank of a failure drill, run on an emulated node: ``python drill_rank.py JSON``.

It tells how far it has come by lines of a file, ``said.RANK`` in the place of the drill, and waits
at the stages that the drill names until a file ``go.STAGE`` is there. Without MPI nothing ends the
job when a rank dies, so each survivor says what it was told.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import forebay
import forebay_lab
from support.ranks.nodes import FileComm


class Rank:
    """What one rank does."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._place = Path(wanted["place"])
        self._told = (self._place / f"said.{wanted['rank']}").open("a", buffering=1)

    def say(self, what: str, **more: Any) -> None:
        """Tell the drill something."""
        self._told.write(json.dumps({"what": what, "pid": os.getpid(), **more}) + "\n")

    def reach(self, stage: str) -> None:
        """Say that a stage is reached; where the drill waits for it, wait for the drill."""
        self.say(stage)
        while stage in self._wanted["wait"] and not (self._place / f"go.{stage}").exists():
            time.sleep(0.01)

    def work(self) -> None:
        """Make a loader and go through its epochs."""
        wanted = self._wanted
        comm = FileComm(wanted["place"] + "/comm", wanted["rank"], wanted["size"])
        world = forebay.World(rank=comm.rank, size=comm.size, comm=comm)
        # Headers are read here; everything else comes later.
        dataset = forebay.open(wanted["path"])
        self.reach("start")
        options = wanted["options"]
        if "strategy" in options:
            options["strategy"] = forebay_lab.strategy(options["strategy"])
        with forebay.Loader(dataset, world=world, node_memory="32MiB", **options) as loader:
            self.reach("made")
            for _ in range(wanted["epochs"]):
                for step, _ in enumerate(loader):
                    if step == 2:
                        self.reach("walking")
                    time.sleep(wanted["pause"])
                self.reach("end")
            self.say("finished", steps=wanted["epochs"] * len(loader))

    def run(self) -> None:
        """Work, and tell how it went."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: self.say("warned", message=str(message))
            try:
                self.work()
            except (forebay.PeerLostError, forebay.RendezvousError) as error:
                self.say("lost", message=str(error), time=time.monotonic())


if __name__ == "__main__":
    Rank(json.loads(sys.argv[1])).run()
