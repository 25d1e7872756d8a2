"""`make bench-pages`: how soon every page is there, what the live overview costs, two hundred dashboards at once."""
