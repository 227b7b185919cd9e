"""``python -m forebay`` is the ``forebay`` command."""

import sys

from forebay.cli import main

sys.exit(main())
