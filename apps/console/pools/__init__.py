"""Pages of pools: settings, policies, the rebalancer's proposals."""
