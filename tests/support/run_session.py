"""``forebay run`` with a session that stands in for the tier daemon's.

Its table is one of ``copy_files``; its summary has the counters of that table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import DEADLINE_S
from support.preload import Copies, run

# Arguments: what the session needs as JSON, then the command line.
_COMMAND = """
import json, sys, time
from pathlib import Path
from forebay import _native
from forebay import StorageError

facts = json.loads(sys.argv[1])

class RunSession:
    def __init__(self, **settings):
        if "fails" in facts:
            raise StorageError(facts["fails"])
        self.log("open", **settings)
        self.table, self.warnings, self.looks = Path(facts["table"]), facts.get("warnings", []), 0
        self.restarts = facts.get("restarts", 0)

    def log(self, what, **more):
        with open(facts["log"], "a") as file:
            file.write(json.dumps({"what": what, **more}) + "\\n")

    def stage(self):
        self.log("stage")

    def progress(self):
        if "loses" in facts:
            raise StorageError(facts["loses"])
        self.looks += 1
        steps = facts.get("steps", 3)
        done = min(self.looks, steps)
        return {"scanned_files": steps, "scanned_bytes": steps << 20, "files": steps, "bytes": steps << 20,
                "copied_files": done, "copied_bytes": done << 20, "is_done": done == steps,
                "is_compared": True, "compared_files": 0,
                "problem": facts.get("problem")}

    def summary(self):
        return facts["summary"]

    def finish(self, within_s):
        self.log("finish", within_s=within_s)

    def close(self):
        self.log("close")

_native.RunSession = RunSession
from forebay.cli import main
sys.exit(main(sys.argv[2:]))
"""

COUNTERS = ("programs", "unknown", "copying", "frozen")


def a_summary(**more):
    """Return a summary in which nothing was served."""
    return {
        "sources": [],
        "levels": [],
        "counters": dict.fromkeys(COUNTERS, 0),
        **dict.fromkeys(
            ("opens", "opens_served", "copied_files", "copied_bytes", "followed_bytes", "fetched_bytes"), 0
        ),
        **dict.fromkeys(("requested_bytes", "requested_files"), 0),
        "largest_requested": None,
        **dict.fromkeys(("waiting_files", "copying_files", "compared_files", "programs"), 0),
        "not_copied": {},
        "differences": [],
        **more,
    }


@dataclass(frozen=True)
class Runs:
    """Where runs of a test are."""

    copies: Copies
    tier: Path
    log: Path

    def command(self, *command, options=(), **facts):
        """Return a command line of ``forebay run``."""
        told = {"table": str(self.copies.table), "log": str(self.log), "summary": a_summary(), **facts}
        where = ["--tier", f"{self.tier}:64MiB", "--source", str(self.copies.source)]
        run = ["run", *where, *options, "--", *command]
        return [sys.executable, "-W", "error", "-c", _COMMAND, json.dumps(told), *map(str, run)]

    def run(self, *command, options=(), env=None, cwd=None, stdin=None, **facts):
        """Run a program; return the result."""
        return subprocess.run(
            self.command(*command, options=options, **facts),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def calls(self):
        """Return what was called of the session."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


def run_with_tier(tier, source, *command, options=(), size="64MiB"):
    """Run a program in a directory with a tier; return its output and the JSON of the run."""
    summary = tier.parent / "summary.json"
    where = ["--tier", f"{tier}:{size}", "--source", source, "--json", summary]
    words = [sys.executable, "-m", "forebay", "run", *where, *options, "--", *command]
    output, errors, status = run(words, cwd=source)
    assert status == 0, errors
    return output, json.loads(summary.read_text())["run"]
