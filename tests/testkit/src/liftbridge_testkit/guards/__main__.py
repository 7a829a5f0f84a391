"""Entry point of `python -m liftbridge_testkit.guards`."""

import sys

from liftbridge_testkit.guards.cli import main

if __name__ == "__main__":
    sys.exit(main())
