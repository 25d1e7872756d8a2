"""The whole platform on one machine: ``make demo``, or ``python -m deploy.demo``.

    supervisor.py   children: started, watched, restarted, stopped in order
    state.py        what lies under $DEMO_DIR
    nodes.py        the demo's nodes: simulated, or this machine's own GPUs
    static.py       what browsers get besides pages
    programs.py     every command that is started
    launch.py       the order of it all

The same supervisor serves the tests that kill parts of the platform: ``$DEMO_DIR/pids.json`` says who is who.
"""
