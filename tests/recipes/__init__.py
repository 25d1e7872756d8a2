"""Recipes of docs/recipes.md, with the real programs where they are installed."""
