"""Samples by number, without a loader, against the formats' own libraries and plain reads.

Page: docs/results/reading.md. Each row reads batches of 256 random samples in one process: by
`Dataset.read`, by `Dataset.__getitems__`, by `dataset[i]` one after the other, by the format's own
library one after the other, and by one `os.pread` per sample at offsets that are known before. All
do so in turn, for the same samples; each figure is the median of the repetitions. Those of the page
cache are processor times, so that other programs hardly change them. The data take about 3 GB.
"""
