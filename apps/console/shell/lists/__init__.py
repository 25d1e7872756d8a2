"""The generic list of the console: a view with columns, a filter set and actions on selected rows."""
