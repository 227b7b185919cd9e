"""The tier daemon of this user on this node, which loaders start: ``python -m forebay.tools.tiers``."""
