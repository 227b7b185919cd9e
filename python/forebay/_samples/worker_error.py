"""What is raised where worker processes fail, apart from them: few jobs have any."""

from forebay.errors import ForebayError

__all__ = ["WorkerError"]


class WorkerError(ForebayError):
    """A worker process could not start, or has died; never a bad sample."""
