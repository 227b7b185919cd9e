"""Round trips over a link between two leaders, beside those over plain TCP.

Page: docs/results/links.md. The ends are on one node, and on two emulated ones (network namespaces
on a bridge). A plain TCP connection between two Python processes at the same places shows what the
machine and its kernel allow.

Needs cargo and emulated nodes.
"""
