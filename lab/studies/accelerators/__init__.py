"""Accelerator utilisation that DLIO reports, by data loader and number of accelerators."""
