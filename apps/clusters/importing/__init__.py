"""Taking over a cluster that others shared: its quotas and what runs, without restarting a pod."""
