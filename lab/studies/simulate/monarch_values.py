"""What the paper on Monarch publishes, by dataset and model, for each of its setups."""

from __future__ import annotations

LUSTRE, LOCAL, CACHE, NO_TIER, MONARCH = "Lustre", "Local", "Cache", "no tier", "Monarch"

Case = tuple[int, str]
"""GiB of the dataset, and the model."""

QUOTA_GIB = 115
"""Of the tier: section 5.1."""

# Minutes of three epochs: figures 13, 18 and 22, sections 3.2, 5.2.1 and 5.2.2. "64 to 67" is 65.5.
TENSORFLOW_MINUTES = {
    (100, "lenet"): {LUSTRE: 18.9, LOCAL: 9.8, CACHE: 14.4, MONARCH: 11.8},
    (100, "alexnet"): {LUSTRE: 18.8, LOCAL: 15.1, CACHE: 16.6, MONARCH: 14.0},
    (100, "resnet50"): dict.fromkeys((LUSTRE, LOCAL, CACHE, MONARCH), 65.5),
    (200, "lenet"): {LUSTRE: 46.4, MONARCH: 33.3},
    (200, "alexnet"): {LUSTRE: 58.3, MONARCH: 45.9},
}
# Minutes of the first epoch: sections 3.2 and 5.2.1.
TENSORFLOW_FIRST = {
    (100, "lenet"): {LUSTRE: 6.6, CACHE: 7.3, MONARCH: 5.3},
    (100, "alexnet"): {LUSTRE: 6.6, CACHE: 7.3, MONARCH: 5.3},
}
# Shares of the time that the GPUs compute: figures 15, 21 and 25.
TENSORFLOW_GPU = {
    (100, "lenet"): {LUSTRE: 0.22, LOCAL: 0.39, CACHE: 0.28, MONARCH: 0.33},
    (100, "alexnet"): {LUSTRE: 0.58, LOCAL: 0.72, CACHE: 0.63, MONARCH: 0.73},
    (100, "resnet50"): {LUSTRE: 0.90, LOCAL: 0.90, CACHE: 0.90, MONARCH: 0.92},
    (200, "lenet"): {LUSTRE: 0.30, MONARCH: 0.40},
    (200, "alexnet"): {LUSTRE: 0.63, MONARCH: 0.76},
    (200, "resnet50"): {LUSTRE: 0.90, MONARCH: 0.90},
}
# Reads of the shared file system in three epochs: figures 20a and 24a.
TENSORFLOW_READS = {
    (100, "lenet"): {LUSTRE: 3 * 395e3, CACHE: 395e3, MONARCH: 202e3},
    (100, "alexnet"): {LUSTRE: 3 * 395e3, CACHE: 395e3, MONARCH: 155e3},
    (100, "resnet50"): {LUSTRE: 3 * 395e3, CACHE: 395e3, MONARCH: 1024},
    (200, "lenet"): {LUSTRE: 2.4e6, MONARCH: 1.2e6},
    (200, "alexnet"): {LUSTRE: 2.4e6, MONARCH: 1.05e6},
    (200, "resnet50"): {LUSTRE: 2.4e6, MONARCH: 1.05e6},
}
# Bytes that Monarch's first epoch reads twice [GiB]: figures 20c and 24c.
READ_TWICE_GIB = {
    (100, "lenet"): 48, (100, "alexnet"): 36, (100, "resnet50"): 0,
    (200, "lenet"): 40, (200, "alexnet"): 0, (200, "resnet50"): 0,
}  # fmt: skip
# Minutes of three epochs: figures 26 and 30. ResNet-50, 200 GiB: 12 minutes are 5 %.
DALI_MINUTES = {
    (100, "lenet"): {LUSTRE: 77.3, LOCAL: 17.5, MONARCH: 20.0},
    (100, "alexnet"): {LUSTRE: 77.5, LOCAL: 16.1, MONARCH: 18.0},
    (100, "resnet50"): {LUSTRE: 84.0, LOCAL: 69.9, MONARCH: 72.4},
    (200, "lenet"): {LUSTRE: 166.4, MONARCH: 108.0},
    (200, "alexnet"): {LUSTRE: 165.0, MONARCH: 104.0},
    (200, "resnet50"): {LUSTRE: 240.0, MONARCH: 228.0},
}
# Figures 29 and 33.
DALI_GPU = {
    (100, "lenet"): {LUSTRE: 0.14, LOCAL: 0.58, MONARCH: 0.50},
    (100, "alexnet"): {LUSTRE: 0.09, LOCAL: 0.41, MONARCH: 0.35},
    (100, "resnet50"): {LUSTRE: 0.75, LOCAL: 0.88, MONARCH: 0.85},
    (200, "lenet"): {LUSTRE: 0.20, MONARCH: 0.31},
    (200, "alexnet"): {LUSTRE: 0.13, MONARCH: 0.21},
    (200, "resnet50"): {LUSTRE: 0.83, MONARCH: 0.87},
}
