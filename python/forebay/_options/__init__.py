"""Values of options: what a user may write, and the objects that stand for it."""
