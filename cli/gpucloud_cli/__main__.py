"""Entry point of `python -m gpucloud_cli`."""

import sys

from gpucloud_cli.main import main

sys.exit(main())
