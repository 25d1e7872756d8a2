"""Django's database back end for PostgreSQL, adapted to pooled connections."""
