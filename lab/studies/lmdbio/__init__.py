"""The steps of LMDBIO, each against the others, on emulated nodes and file systems.

Page: docs/results/lmdbio.md. "Scalable Deep Learning via I/O Analysis and Optimization" (Pumma et
al., TOPC 2019: the paper). Every section runs one or a few ``forebay bench`` commands, and prints
them. A section ends within about ten minutes on two cores; ``ladder`` stands for its six parts. The
datasets are published workloads scaled down.

Needs FUSE.
"""
