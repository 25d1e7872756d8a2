"""Changes to running claims by measured use: proposals, lent guarantees, consolidation."""
