"""The commands that forebay-lab adds to ``forebay``."""

COMMANDS = {
    "bench": "Compare strategies on a dataset and print where the time goes.",
    "simulate": "Predict the I/O of a job, of any size, in virtual time.",
    "costs": "Measure the processor costs of this machine, for simulated jobs.",
    "pfs": "Mount a directory as an emulated parallel file system.",
    "recipe": "Derive, declare and verify recipes of LMDB files.",
    "report": "Write an HTML page from a result or an event log.",
    "demo": "Train a small model from an LMDB file on MPI ranks of this machine.",
}
"""What ``forebay --help`` says of each; it is ``command`` of the module of its name."""
