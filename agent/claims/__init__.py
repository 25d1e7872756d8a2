"""The runtime of claims on this node: directories, limits pages, processes, usage, audit."""
