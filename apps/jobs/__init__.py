"""Jobs: commands that the agent of a node starts under a claim, with their output and exit codes."""
