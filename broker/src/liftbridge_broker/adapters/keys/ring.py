"""All master keys of a broker: those in memory, and those of the service, asked in a thread."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from liftbridge_broker.adapters.keys.local import FILE_SETTING, LocalKeys, local_keys
from liftbridge_broker.adapters.keys.service import ITEMS_MAX, Item, Outcome, ask, list_keys
from liftbridge_broker.adapters.secret_file import read_secret
from liftbridge_broker.errors import KeyUnavailableError, LiftbridgeError
from liftbridge_broker.model.keys import MASTER_KEYS_MAX, MasterKey
from liftbridge_broker.ports.master_keys import KeyDone, missing

LIST_AGAIN_SECONDS: Final = 15.0
WAITING_MAX: Final = 200_000
"""Requests that wait for the service: one for each stream at a start, and those that create."""


class _Request(NamedTuple):
    operation: str
    item: Item
    done: KeyDone


class MasterKeyRing:
    """Implements `ports.master_keys.MasterKeys`.

    Args:
        file: File with keys by id; empty for none.
        command: Program that asks a key service; empty for none.
        environment: Key of the original's environment variable; empty for none.
        post: Runs a callable in the event loop; safe to call from any thread.
        on_changed: Called in the event loop when `known` has changed.
        on_failed: Called in the event loop, with the reason, if the service does not list its keys;
            it is asked again.
        list_again_seconds: Time until then.
        waiting_max: Maximum number of requests that wait for the service.

    Attributes:
        known: All master keys; an id in memory precedes one of the service.
    """

    def __init__(
        self,
        *,
        file: str,
        command: str,
        environment: str,
        post: Callable[[Callable[[], None]], object],
        on_changed: Callable[[], None],
        on_failed: Callable[[str], None],
        list_again_seconds: float = LIST_AGAIN_SECONDS,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """Start with the keys in memory; `begin` asks the service for the ids of its keys.

        Raises:
            ConfigError: The file cannot be read, or a key in it or in the environment is invalid.
        """
        self._file = file
        self._command = command
        self._environment = environment
        self._post = post
        self._on_changed = on_changed
        self._on_failed = on_failed
        self._local = self._read()
        self._service: tuple[MasterKey, ...] = ()
        self.known = self._local.known
        self._waiting: deque[_Request] = deque()
        self._wakes = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_to_list = False
        self._list_again_seconds = list_again_seconds
        self._list_again_after: float | None = None
        self._waiting_max = waiting_max
        self._is_ending = False

    def _read(self) -> LocalKeys:
        text = read_secret(self._file, FILE_SETTING) if self._file else ""
        return local_keys(text, self._file, self._environment)

    def begin(self) -> None:
        """Ask the service for the ids of its keys, if there is one; `on_changed` follows."""
        if self._command:
            with self._wakes:
                self._has_to_list = True
                self._start()

    def renew(self) -> None:
        """Read the file again, and ask the service again for the ids of its keys.

        Raises:
            ConfigError: The file is invalid; the keys stay as they are.
        """
        fresh = self._read()
        if fresh.keys != self._local.keys:
            self._local = fresh
            self._merge()
        self.begin()

    def wrap(self, key_id: str, data_key: bytes, purpose: str, done: KeyDone) -> None:
        """Implement `MasterKeys.wrap`."""
        if key_id in self._local.keys:
            done(self._local.wrap(key_id, data_key, purpose))
        else:
            self._ask("wrap", Item(key_id, data_key, purpose), done)

    def unwrap(self, key_id: str, wrapped: bytes, purpose: str, done: KeyDone) -> None:
        """Implement `MasterKeys.unwrap`."""
        if key_id not in self._local.keys:
            self._ask("unwrap", Item(key_id, wrapped, purpose), done)
            return
        try:
            outcome: bytes | KeyUnavailableError = self._local.unwrap(key_id, wrapped, purpose)
        except KeyUnavailableError as error:
            outcome = error
        done(outcome)

    def random(self, size: int) -> bytes:
        """Implement `MasterKeys.random`."""
        return os.urandom(size)

    def shut_down(self) -> None:
        """End the thread, without waiting for a program that runs; no callback follows."""
        with self._wakes:
            self._is_ending = True
            self._waiting.clear()
            self._wakes.notify()

    # -- the service --------------------------------------------------------------------------

    def _ask(self, operation: str, item: Item, done: KeyDone) -> None:
        if not self._command:
            done(missing(item.key_id))
            return
        with self._wakes:
            if len(self._waiting) < self._waiting_max:
                self._waiting.append(_Request(operation, item, done))
                self._start()
                return
        done(KeyUnavailableError(f"{self._waiting_max} requests wait for the key service already"))

    def _start(self) -> None:
        """Wake the thread; its lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="liftbridge-keys", daemon=True)
            self._thread.start()
        self._wakes.notify()

    def _run(self) -> None:
        while True:
            with self._wakes:
                has_work = self._wakes.wait_for(self._has_work, self._list_again_after)
                if self._is_ending:
                    return
                has_to_list = self._has_to_list or not has_work
                self._has_to_list = False
                requests = [] if has_to_list else self._take()
            if has_to_list:
                self._list()
            else:
                self._serve(requests)

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._has_to_list or self._is_ending

    def _take(self) -> list[_Request]:
        """Take waiting requests of one operation."""
        taken = [self._waiting.popleft()]
        while (
            self._waiting
            and len(taken) < ITEMS_MAX
            and self._waiting[0].operation == taken[0].operation
        ):
            taken.append(self._waiting.popleft())
        return taken

    def _list(self) -> None:
        try:
            keys = list_keys(self._command)
        except KeyUnavailableError as error:
            self._list_again_after = self._list_again_seconds
            self._hand_over(partial(self._on_failed, error.text))
            return
        self._list_again_after = None
        self._hand_over(partial(self._set_service, keys))

    def _serve(self, requests: Sequence[_Request]) -> None:
        items = [request.item for request in requests]
        outcomes: Sequence[Outcome]
        try:
            outcomes = ask(self._command, requests[0].operation, items)
        except KeyUnavailableError as error:
            outcomes = [error] * len(items)
        self._hand_over(partial(_answer, requests, outcomes))

    def _hand_over(self, act: Callable[[], None]) -> None:
        # A closed loop takes no more results.
        with contextlib.suppress(RuntimeError):
            self._post(act)

    def _set_service(self, keys: tuple[MasterKey, ...]) -> None:
        if keys != self._service:
            self._service = keys
            self._merge()

    def _merge(self) -> None:
        local = self._local.known
        ids = {key.key_id for key in local}
        service = tuple(key for key in self._service if key.key_id not in ids)
        self.known = (*local, *service)[:MASTER_KEYS_MAX]
        self._on_changed()


def _answer(requests: Sequence[_Request], outcomes: Sequence[Outcome]) -> None:
    for request, outcome in zip(requests, outcomes, strict=True):
        result: bytes | LiftbridgeError = outcome
        request.done(result)
