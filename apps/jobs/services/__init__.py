"""The life of a job: made with its claim, ordered from a node, observed, ended."""
