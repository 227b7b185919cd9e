"""Rows of Arrow and Parquet files, by a loader and by pyarrow.

Page: docs/results/tables.md. Each row takes an epoch of batches of 256 rows in one process. pyarrow
takes random batches of an Arrow file as the library datasets of Hugging Face does: by `take` on a
memory map. Of a Parquet file it reads the row groups in random order, since there is no access to
single rows. Both run in turn, with files in the page cache; a figure is the median of the
repetitions. The data take about 1 GB.

Needs pyarrow.
"""
