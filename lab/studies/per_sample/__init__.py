"""Functions of samples in threads and processes of a loader, against a pool of processes.

Page: docs/results/per-sample.md. ``multiprocessing.Pool`` pickles samples and results. All run in
turns, in one process, from a file in the page cache; workers live as long as the study.
"""
