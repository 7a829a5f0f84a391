"""Keeps an event loop that nobody closes from being made beside the tests' own."""

import asyncio

# The first asynchronous test of a process makes pytest-asyncio ask for a current loop in order to
# restore it; asyncio then makes one that is never closed, and some later test fails for its
# ResourceWarning. Saying that there is none avoids it.
asyncio.set_event_loop(None)
