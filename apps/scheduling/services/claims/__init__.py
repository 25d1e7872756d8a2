"""The life of a claim: made, measured by its states, changed while it runs, released, forgotten with its node."""
