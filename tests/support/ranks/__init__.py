"""Processes that play the ranks of a node, and what they do."""
