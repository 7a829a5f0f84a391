"""Libraries whose compiled part cannot be loaded, and that fall back to Python in silence."""

import google_crc32c
from google.protobuf.internal import api_implementation

from liftbridge_broker.ports.observe import Observer


def warn_of_slow_libraries(observer: Observer) -> None:
    """Report libraries that run without their compiled part: a broker is many times slower.

    Replicas then leave the in-sync sets under load. The usual cause is an image without a C++
    library, libstdc++.so.6.
    """
    in_use = {
        "google-crc32c": google_crc32c.implementation,
        "protobuf": api_implementation.Type(),
    }
    for library, implementation in in_use.items():
        if implementation == "python":
            observer.transition("library_slow", {"library": library})
