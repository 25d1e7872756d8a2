"""From queue to GPU: the pool as its scheduler keeps it, a round over it, and making true what the core decided."""
