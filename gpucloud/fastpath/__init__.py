"""Every place that goes round a framework for speed.

- `compiled_queries`: Django's compiler, for queries of every request (docs/decisions/0017).
- `page_queries`: Django's compiler and constructor of models, for the rows of a page (docs/decisions/0137).
- `documents`: REST framework's representation of rows (docs/decisions/0137).
- `serving`: Django's ASGI handler, one change of threads a request (docs/decisions/0012).
- `cursors`, `database`: Django's PostgreSQL back end: server-side binding, dead pooled connections, fast timestamps.
- `static_files`: Django's handler, for files that need no request.
- `gc_tuning`: Python's cycle collector.
- `optional_libraries`: imports of REST framework for features that nothing here uses.

`tests/house/test_fastpath.py` fails on a new minor version of what they go round.
"""
