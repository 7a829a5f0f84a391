"""CRC-32C (Castagnoli, RFC 3720 B.4), the one checksum of everything stored.

Both functions accept read-only bytes only: the C extension refuses views, so callers slice `bytes`
(a copy of 40 KB costs 0.8 us, its checksum 1.5 us).
"""

from collections.abc import Callable
from typing import Final

import google_crc32c

crc32c: Final[Callable[[bytes], int]] = google_crc32c.value
"""Checksum of bytes, an unsigned 32-bit integer."""

crc32c_extend: Final[Callable[[int, bytes], int]] = google_crc32c.extend
"""Checksum of the bytes of an earlier checksum followed by more bytes."""
