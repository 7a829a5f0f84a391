"""Hashes the secrets of API tokens with Argon2id (RFC 9106) in a thread of its own.

A hash takes some 30 ms and 19 MiB, the lower bound of OWASP's recommendation: the secrets have 238
random bits, so that the cost is a second line of defence, behind their length. One thread computes
one hash at a time; a bounded number may wait.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from liftbridge_broker.access.api_tokens import (
    ID_DIGITS,
    ID_LENGTH,
    SECRET_DIGITS,
    SECRET_LENGTH,
    ApiToken,
)
from liftbridge_broker.errors import UnavailableError

WAITING_MAX: Final = 64
"""Hashes that may wait, some two seconds of work."""

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_KIB: Final = 19_456
PASSES: Final = 2


def new_token() -> ApiToken:
    """Make a token at random."""
    return ApiToken(
        "".join(secrets.choice(ID_DIGITS) for _ in range(ID_LENGTH)),
        "".join(secrets.choice(SECRET_DIGITS) for _ in range(SECRET_LENGTH)),
    )


def verifier_of(secret: str) -> str:
    """Return the hash of a secret in the PHC form, with a new salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    argon = Argon2id(
        salt=salt, length=HASH_BYTES, iterations=PASSES, lanes=1, memory_cost=MEMORY_KIB
    )
    return argon.derive_phc_encoded(secret.encode())


def is_secret_of(secret: str, verifier: str) -> bool:
    """Return whether a hash is that of a secret."""
    try:
        Argon2id.verify_phc_encoded(secret.encode(), verifier)
    except InvalidKey:
        return False
    return True


class Hasher:
    """The thread; results arrive on the event loop."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        """Create the pool; its thread starts with the first hash."""
        self._waiting_max = waiting_max
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="liftbridge-argon2")
        self._waiting = 0

    def make(self, done: Callable[[ApiToken, str], None]) -> None:
        """Make a token at random, and the hash of its secret.

        Raises:
            UnavailableError: Too many hashes wait.
        """
        token = new_token()
        self._run(partial(verifier_of, token.secret), partial(done, token))

    def check(self, secret: str, verifier: str, done: Callable[[bool], None]) -> None:
        """Compare a secret with a hash.

        Raises:
            UnavailableError: Too many hashes wait.
        """
        self._run(partial(is_secret_of, secret, verifier), done)

    def close(self) -> None:
        """Drop the waiting hashes; the last one ends soon."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], object], done: Callable[..., None]) -> None:
        if self._waiting >= self._waiting_max:
            raise UnavailableError(
                f"{self._waiting} API tokens are being verified: try again in a few seconds"
            )
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(partial(self._finished, done))

    def _finished(self, done: Callable[..., None], future: "asyncio.Future[object]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            done(future.result())
