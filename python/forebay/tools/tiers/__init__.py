"""The tier daemon of a user on a node, which loaders start."""
