"""Forebay's benchmarks: a harness, data sets, plain baselines, and one module per family of rows."""
