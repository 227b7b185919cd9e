"""Time that the preload library adds to a call.

Page: docs/results/run-calls.md. A program under the preload library makes each call through the
library and past it, in turns. The sources have a file table of 1,000,000 records, and their copies
are in memory.

Needs cargo.
"""
