"""A node with a GPU: images to the device, and the loaders of the study ``frameworks``.

Page: docs/results/gpu-node.md. A section ends within two minutes. Rows of packages that are not
installed are skipped.

Needs torch, and ``images`` a CUDA device.
"""
