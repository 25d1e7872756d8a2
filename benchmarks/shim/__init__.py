"""``make bench-shim``: cost of libvcuda and accuracy of its limits, compared with bare runs, on this machine's GPU.

It needs a C compiler and Python 3.10, and PyTorch for some parts; no control plane: the limits pages are written here,
and the arbiter is started by hand. Modules, from the outside in: ``parts`` (one module a table), ``stage`` (claims,
processes, arbiter), ``sampling`` (shares over windows), ``report`` (markdown, JSON, plots).
"""
