//! Who is one job on this node.
