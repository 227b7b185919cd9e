"""``python -m forebay_lab.demo``: the demo without the command line of Forebay around it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forebay_lab.demo.runner import DATA, OUTPUT, RANKS, SAMPLES, main

parser = argparse.ArgumentParser(
    prog="forebay_lab.demo", description="The main job on this machine, end to end."
)
parser.add_argument("--ranks", type=int, default=RANKS, help="MPI ranks (default: %(default)s)")
parser.add_argument("--samples", type=int, default=SAMPLES, help="training samples (default: %(default)s)")
parser.add_argument("--output", type=Path, default=OUTPUT, help="the page to write (default: %(default)s)")
parser.add_argument("--data", type=Path, default=DATA, help="where the dataset goes (default: %(default)s)")
parser.add_argument("--keep", action="store_true", help="keep the dataset for the next time")
parser.add_argument(
    "--pfs", metavar="PRESET", dest="preset", help="file system to emulate (default: nfs where FUSE is there)"
)
parser.add_argument("--no-pfs", dest="emulate", action="store_false", help="read the local disk")
parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
arguments = parser.parse_args()
sys.exit(main(**vars(arguments)))
