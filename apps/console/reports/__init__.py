"""Pages of usage reports and prices."""
