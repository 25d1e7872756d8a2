"""The claims that this node holds: their directories, pages and processes."""
