"""Every place that goes round a framework for speed, each with its decision in docs/decisions."""
