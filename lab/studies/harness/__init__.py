"""What studies share: their command line, pages of results, datasets, mounts, daemons."""
