"""What is done with clusters, a module per noun."""
