"""What the paper says in numbers: Pumma, Si, Feng, Balaji, "Scalable Deep Learning via I/O Analysis
and Optimization", ACM TOPC 6(2), 2019.

Only what its text says: curves that it draws and does not name are not here. "Up to" stands for the
largest value over all numbers of processes.
"""

from __future__ import annotations

READ_FACTORS_AT = 4608
READ_FACTORS = {
    "lmm-dm": 6.7,
    "lmm-dio": 17.18,
    "lmm-dio-prov": 19.44,
    "lmm-dio-prov-coal": 21.86,
    "lmm-dio-prov-coal-stag": 81.05,
}
"""Reading, times as fast as LMDB on `READ_FACTORS_AT` processes of Bebop: figures 17a, 18a, 20a,
21a, 22a."""

LMM_MOST = 43.77
LMM_UP_TO = 1152
"""Reading, LMM up to `LMM_MOST` times as fast as LMDB, on at most `LMM_UP_TO` processes: figure
15a. Above them it is slightly slower than LMDB."""

SEEK_SHARES = {"lmm": 0.60, "lmm-dm": 0.01, "lmm-dio": 0.20, "lmm-dio-prov": 0.0}
"""Of the read time: figures 17b (nearly 60 %, below 1 %), 18b (nearly 20 %), section 5.1.4."""

SKEW_SHARES = {"lmm-dio-prov-coal": 0.25}
"""Of the read time: figure 21b."""

SCALING_AT = 9216
ABOVE_IDEAL = {"alexnet": 660.0}
"""Training with LMDB, time over that of ideal scaling on `SCALING_AT` processes: figure 3a."""
IO_SHARES = {"alexnet": 0.90, "caffenet": 0.66, "resnet50": 0.75}
"""Training with LMDB, share of reading and skew on `SCALING_AT` processes: figures 3b, 4b, 5b."""

BLUES_AT = 512
BLUES_FACTORS = {
    "cifar10-large": {"lmm": 1.21, "lmm-dm": 1.41},
    "imagenet": {"lmm": 7.0, "lmm-dm": 8.3},
}
"""Training on Blues, times as fast as LMDB on `BLUES_AT` processes: figures 23a, 23b."""

STRONG_FACTORS = {"cifar10-large": 65.0, "imagenet-large": 1.6}
WEAK_FACTORS = {"cifar10-large": 43.0, "imagenet-large": 1.9}
"""Training on Bebop, staggered reading (STAG) times as fast as LMDB: on 9,216 processes, the batch
of all 18,432 samples (figures 24b, 25b); and up to, two samples per process (figures 26b, 27b)."""

MMAP_SLOWDOWN = 2.5
"""One reader, pread in blocks of 4 KiB, times as fast as a mapping: section 3.3.3."""
