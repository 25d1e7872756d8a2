"""The life of a claim: creation, observed state, live changes, release."""
