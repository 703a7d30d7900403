"""`python -m trackperf`: the same as the command `trackperf`."""

from __future__ import annotations

import sys

from trackperf.cli import main

if __name__ == "__main__":
    sys.exit(main())
