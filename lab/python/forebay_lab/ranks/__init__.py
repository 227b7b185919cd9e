"""Starting ranks on this machine, and what they measure of themselves."""
