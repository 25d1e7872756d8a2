"""Forecasts: quantiles of the core that claims will need, followed by their coverage, and replays of lending."""
