"""Forebay's benchmarks: a frame, data sets, plain baselines, and one module per family of rows."""
