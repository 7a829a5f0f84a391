"""Units: times in nanoseconds, sizes in bytes."""

from typing import Final

MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000

KIB: Final = 1_024
MIB: Final = 1_024 * KIB
GIB: Final = 1_024 * MIB
