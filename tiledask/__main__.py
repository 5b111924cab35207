"""`python -m tiledask`: the command line."""

import sys

from tiledask.cli import main

if __name__ == "__main__":
    sys.exit(main())
