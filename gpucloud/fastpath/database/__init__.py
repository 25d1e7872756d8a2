"""The database's back end for Django: its PostgreSQL, with an eye on pooled connections."""
