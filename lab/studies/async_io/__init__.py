"""Asynchronous I/O: reading in groups while a step computes, and the formats that are read so.

Page: docs/results/async-io.md. "Asynchronous I/O Strategy for Large-Scale Deep Learning
Applications" (Lee et al.: the paper) as a strategy of the one engine. A section ends within about
ten minutes on two cores.

``exposed-…`` and ``formats-limit-…`` need FUSE. Rows of TensorFlow need ``tensorflow-cpu``, and are
left out without.
"""
