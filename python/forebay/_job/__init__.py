"""The job of this process: its ranks, their nodes, and the channel on which a loader is made."""
