"""`python -m liftbridge_testkit.hostile --seconds 8`: every attack, told and judged."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from liftbridge_testkit.cluster import ClusterKit
from liftbridge_testkit.hostile.attacks import CONFIG, attacks
from liftbridge_testkit.hostile.judge import faults, judge
from liftbridge_testkit.progress import say


def main() -> int:
    """Judge; 1 when anything happened that must not."""
    parser = argparse.ArgumentParser(prog="hostile")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each attack (8)")
    parser.add_argument("--only", default="", help="part of the names of attacks")
    options = parser.parse_args()
    names = [attack.name for attack in attacks() if options.only in attack.name]
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as place,
        ClusterKit(Path(place), config=CONFIG, has_proxies=False) as cluster,
    ):
        found = judge(cluster, names, seconds=options.seconds)
    bad = [felt.name for felt in found if faults(felt)]
    say(f"\n{len(found)} attacks, {len(bad)} felt: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
