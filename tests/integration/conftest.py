"""Keeps an event loop that nobody closes from being made beside the tests' own."""

import asyncio

# Between tests pytest asks for a current loop; asyncio then makes one that is never closed, and
# some later test fails for its ResourceWarning. Saying that there is none avoids it.
asyncio.set_event_loop(None)
