"""``forebay bench``: strategies side by side on one dataset and its file system.

How, in order: the dataset is looked at (`facts`), rows ``strategy@order`` are made from the
command line (`strategies`), each a preset of the engine (`engine`) or a real, unmodified library in
its usual use (`baselines`). The runner (`runner`) starts real ranks for each row and repetition,
interleaved, under MPI or as plain processes (`processes`), on emulated nodes of their own where the
dataset lies on a mount of the emulator (`nodes`). A rank (`rank`) takes time stamps; which part of
its time was waiting for data and which for other ranks is worked out afterwards (`timing`). Before
anything is timed, every row runs once through a pass that keeps a digest of each sample; digests
are compared step by step within one order and over whole epochs between orders (`verify`).
"""
