"""Access patterns of ranks on a parallel file system: walks, regions, stripes, read-ahead.

Page: docs/results/access-patterns.md. Each section runs one or a few ``forebay bench`` (or
``limit``) commands on the emulated file systems, and prints them. The dataset is the published
``fefs`` workload scaled down.

Needs FUSE; ``epochs`` also a memory control group (version 1) that can be written.
"""
