"""`python -m liftbridge_testkit.operator_sim`."""

import sys

from liftbridge_testkit.operator_sim.cli import main

if __name__ == "__main__":
    sys.exit(main())
