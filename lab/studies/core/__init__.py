"""One node, warm and cold: Forebay against plain loops that read the same bytes.

Page: docs/results/core.md. A section is a row of the page (`row.Row`): both sides run in one
process, in turn, and the figure is the median ratio of neighbours. Each row has a process of its
own. A row that misses its bar is no error; one that fails is. ``make bench`` measures and stores
all, from about 3.5 GB of data.

In order: a module has each family of rows; ``plain`` has what Forebay is
compared with, ``throttle`` the slow disk.

Needs gcc; cold rows also root and the blkio controller (version 1), and are skipped without.
"""
