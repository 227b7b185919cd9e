"""Forebay's benchmarks: a harness, data sets, plain baselines, one module per row family."""
