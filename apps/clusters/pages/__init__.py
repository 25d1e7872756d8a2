"""The pages of clusters. Operators only."""
