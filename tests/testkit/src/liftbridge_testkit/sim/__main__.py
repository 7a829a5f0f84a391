"""Entry point of `python -m liftbridge_testkit.sim`."""

import sys

from liftbridge_testkit.sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
