"""Puts a rank into its surroundings, and becomes the rank's program.

``python -S enter.py RUN.json RANK PROGRAM…``; RANK is ``mpi`` where MPI's launcher numbers the
ranks. In order: the process joins the memory group of its node, gets a runtime directory of its
node where tiers need one, sets the row's environment variables, and executes the row's wrapper
command with the program behind it. ``{tier}`` in both stands for the first tier mount of the rank's
node, ``{tier1}`` for the next one.

Only the standard library, without packages: nothing of Forebay is in the process before the
wrapper.
"""

import json
import os
import re
import sys
from pathlib import Path

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> None:
    """Enter, and execute the program."""
    path, number, *program = sys.argv[1:]
    run = json.loads(Path(path).read_text("utf-8"))
    if number == "mpi":
        number = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "")
        if not number:
            sys.exit(f"bench: expected the number of the rank in {' or '.join(RANK_VARIABLES)}, found none")
    node = next(node for node, ranks in enumerate(run["nodes"]) if int(number) in ranks)
    if run["memory_groups"]:
        # 0 is the process that writes, whatever its number is in this namespace.
        Path(run["memory_groups"][node], "cgroup.procs").write_text("0")
    tiers = run["tiers"][node] if run["tiers"] else []
    if tiers and len(run["nodes"]) > 1:
        # The daemon of tiers is one per node and runtime directory, and /tmp is that of all.
        own = Path(path).with_name(f"runtime-{node}")
        own.mkdir(mode=0o700, exist_ok=True)
        os.environ["FOREBAY_RUNTIME_DIR"] = str(own)

    def filled(text: str) -> str:
        return re.sub(r"\{tier(\d*)\}", lambda match: tiers[int(match[1] or 0)], text)

    os.environ.update({name: filled(value) for name, value in run["environment"].items()})
    command = [*map(filled, run["wrapper"]), *program]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"bench: rank {number}: cannot execute {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
