"""Loaders as `studies.frameworks.rank` uses them: `place.Epochs`, a module per project."""
