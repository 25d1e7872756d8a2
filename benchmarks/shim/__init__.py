"""``make bench-shim``: what libvcuda costs and how well its limits hold, beside bare runs, on the GPU of this machine.

It needs a C compiler and Python 3.10, and PyTorch for the parts that say so; no control plane: the limits pages are
written here, and the arbiter is started by hand. Modules, from the outside in: ``parts`` (one module a table),
``stage`` (claims, processes, arbiter), ``sampling`` (shares over windows), ``report`` (markdown, JSON, plots).
"""
