"""What studies share: their command line, pages of results, data sets, mounts, daemons."""
