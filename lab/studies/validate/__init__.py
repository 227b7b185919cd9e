"""The simulator against the emulator: wall time, bytes and seeks of each row that has a model.

Page: docs/results/validate.md. Each section measures the rows of one job with ``forebay bench``,
and stores the result below the directory of data; a result that is there is not measured again, so
a run that was interrupted goes on, and a changed model needs no measurement. ``forebay simulate
--like`` then simulates the job. The sections ``bars``, ``order`` and ``misses`` judge all results
that are stored.

All of it takes more than an hour on two idle cores. Needs FUSE and MPI.
"""
