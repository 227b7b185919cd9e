"""The job of this process: its ranks, their nodes, and the channel over which they agree when a loader is made."""
