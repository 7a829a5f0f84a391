"""Drops messages with too many NATS headers before their headers are parsed.

A header block has no bound but `max_payload`: a message of 1 MiB can hold 350,000 lines. Parsing
them takes some 50 ms for each partition that receives its subject; counting them, 0.3 ms. Brokers
send one header, an idempotent publisher a few.
"""

from typing import Final

from liftbridge_broker.ports.messaging import Arrival

HEADERS_MAX: Final = 1_000
"""The bound for a message of the API."""

_LINE_END: Final = b"\r\n"
_OTHER_LINES: Final = 2
"""The version line above the headers, and the empty line below."""


def leave_out_wide(
    arrivals: list[Arrival], payloads: list[bytes]
) -> tuple[list[Arrival], list[bytes]]:
    """Return the messages of a delivery with at most `HEADERS_MAX` headers, in order.

    Nearly all have none: equal arrivals are counted in C (benchmark `bench_nats.py::parse`).
    """
    first = arrivals[0]
    if not first.headers and arrivals.count(first) == len(arrivals):
        return arrivals, payloads
    kept = [index for index, one in enumerate(arrivals) if not _is_wide(one.headers)]
    if len(kept) == len(arrivals):
        return arrivals, payloads
    return [arrivals[index] for index in kept], [payloads[index] for index in kept]


def _is_wide(headers: bytes) -> bool:
    return headers.count(_LINE_END) > HEADERS_MAX + _OTHER_LINES
