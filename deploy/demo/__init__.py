"""The whole platform on one machine: ``make demo``, or ``python -m deploy.demo``.

    supervisor.py   starts, watches, restarts and stops children
    state.py        the contents of $DEMO_DIR
    nodes.py        the demo's nodes: simulated, or this machine's own GPUs
    static.py       static files for browsers
    programs.py     every command that is started
    launch.py       the start-up order

The same supervisor serves the tests that kill parts of the platform: ``$DEMO_DIR/pids.json`` maps programs to pids.
"""
