"""Services of clusters, a module per noun."""
