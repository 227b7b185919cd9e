"""The command ``python lab/studies``."""

import sys
from pathlib import Path

# Names of studies are no names of packages: `run`, `store`, `tables`.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from studies.harness import sections  # noqa: E402

if __name__ == "__main__":
    sys.exit(sections.main(sys.argv[1:]))
