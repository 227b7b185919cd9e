"""Two builds on the warm rows of ``core``: what surviving lost pages costs.

Page: docs/results/lost-pages.md. Each pair is two new processes, one of either build, which take
turns: one epoch each, the first of a turn alternating, so that both meet the same neighbours on the
machine. Of a pair counts the ratio of the medians of its epochs, of all pairs the median, with a
95 % interval from 10,000 bootstrap samples. Processor time is the process's own, user and system.

``handler`` compares this build with another: ``--against OTHER/python`` of a checkout in which
``make build`` was run. ``pread`` compares this build with itself, reading instead of mapping.
"""
