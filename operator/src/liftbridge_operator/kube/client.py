"""Adapter of the port to an API server, on the asyncio client of the `kubernetes` package.

The library provides credentials, TLS and connections; paths and bodies are built here, since the
operator works on plain objects and on kinds for which the library has no classes. Its own retries
are off: this module decides what is retried, and how often.
"""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import quote, unquote

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from liftbridge_operator.kube.answers import error_of, is_retried
from liftbridge_operator.kube.errors import KubeError, UnansweredError, UnavailableError
from liftbridge_operator.kube.kinds import Kind, kind_of
from liftbridge_operator.kube.port import (
    FIELD_MANAGER,
    STATUS_MANAGER,
    Fence,
    Listing,
    Object,
    Preconditions,
    Propagation,
    check_apply,
    check_delete,
    patch_body,
)
from liftbridge_operator.kube.silence import Silence, written

PAGE_ITEMS: Final = 500
"""Objects in one page of a list, as for kubectl."""

PAGES_MAX: Final = 200
_APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json"

Sleep = Callable[[float], Awaitable[None]]
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of requests and retries.

    Attributes:
        request_s: Time-out of one request, including its answer.
        attempts_max: Requests of one call, including the first.
        backoff_s: Longest wait before the second attempt; doubles with each further one.
        backoff_max_s: Longest wait, also when the API server requests a longer one.
        in_flight_max: Maximum number of concurrent requests; further ones wait.
        hung_s: Time without an answer after which a write counts as hung and is not retried.
        silence_s: Time after a hung write in which no other write of its kind is sent; with 0,
            hung writes are not distinguished from an unavailable API server.
    """

    request_s: float = 10.0
    attempts_max: int = 4
    backoff_s: float = 0.25
    backoff_max_s: float = 4.0
    in_flight_max: int = 32
    hung_s: float = 5.0
    silence_s: float = 0.0


class KubeClient:
    """Client of the API server over HTTP.

    Safe calls (reads, applies, patches and deletions with preconditions) are retried after a broken
    connection; a create is retried only when the API server refused to process it. Every attempt of
    a write checks the fence first. A write that hangs or fails while reads are answered is
    distinguished from an unavailable API server.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        fence: Fence | None,
        rng: Random,
        bounds: Bounds = Bounds(),
        sleep: Sleep = asyncio.sleep,
        on_answer: Callable[[str, str], None] | None = None,
        manager: str = FIELD_MANAGER,
    ) -> None:
        """Create a client over open connections.

        Args:
            api: Open connections, owned by the caller.
            fence: Checked before each write; None for a client without a fence.
            rng: Source of jitter.
            bounds: Bounds of requests and retries.
            sleep: Waits between attempts.
            on_answer: Called for each attempt: verb, and status or `error`.
            manager: Field manager of created and patched objects.
        """
        self._api = api
        self._fence = fence
        self._rng = rng
        self._bounds = bounds
        self._sleep = sleep
        self._on_answer = on_answer
        self._manager = manager
        self._turn = asyncio.Semaphore(bounds.in_flight_max)
        self._silence = Silence(bounds.silence_s)

    # -- reads --------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See the port."""
        found = await self._call("GET", path_of(kind, namespace, name))
        return _named(found, kind)

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """See the port."""
        items: list[Object] = []
        query = [("limit", str(PAGE_ITEMS))]
        if selector:
            query.append(("labelSelector", selector))
        if fields:
            query.append(("fieldSelector", fields))
        token = ""
        for _ in range(PAGES_MAX):
            more = [("continue", token)] if token else []
            page = await self._call("GET", path_of(kind, namespace), [*query, *more])
            # Items of built-in kinds lack `apiVersion` and `kind`.
            items += (_named(item, kind) for item in page.get("items") or ())
            token = page["metadata"].get("continue", "")
            if not token:
                return Listing(tuple(items), page["metadata"].get("resourceVersion", ""))
        raise UnavailableError(f"{kind.qualified}: more than {PAGES_MAX * PAGE_ITEMS} objects")

    async def read_raw(self, path: str, query: Query = ()) -> bytes:
        """Read a resource that is not an object, such as the log of a pod.

        Args:
            path: Path of the resource.
            query: Query parameters.

        Raises:
            KubeError: As for reads of objects.
        """
        return await self._send("GET", path, query)

    async def read_object(self, path: str) -> Object:
        """Read a JSON object without a kind, such as the version of the API server.

        Raises:
            KubeError: As for reads of objects.
        """
        return await self._call("GET", path)

    # -- writes -------------------------------------------------------------------------------

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """See the port."""
        kind, metadata = kind_of(body), body["metadata"]
        where = metadata.get("namespace", "")
        query = [("fieldManager", self._manager), ("fieldValidation", "Strict")]
        query += [("dryRun", "All")] if dry_run else []
        subject = path_of(kind, where, metadata.get("name", ""))
        path = path_of(kind, where)
        return await self._call("POST", path, query, body, content=_JSON, subject=subject)

    async def apply(
        self, body: Object, *, force: bool = False, manager: str = FIELD_MANAGER
    ) -> Object:
        """See the port."""
        kind = kind_of(body)
        check_apply(body, kind, force=force)
        metadata = body["metadata"]
        path = path_of(kind, metadata.get("namespace", ""), metadata["name"])
        return await self._apply(path, "", body, manager, force=force)

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """See the port."""
        metadata = body["metadata"]
        path = path_of(kind_of(body), metadata.get("namespace", ""), metadata["name"])
        return await self._apply(path, "/status", body, manager, force=True)

    async def _apply(
        self, subject: str, part: str, body: Object, manager: str, *, force: bool
    ) -> Object:
        query = [
            ("fieldManager", manager),
            ("force", "true" if force else "false"),
            ("fieldValidation", "Strict"),
        ]
        path = subject + part
        return await self._call("PATCH", path, query, body, content=_APPLY, subject=subject)

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        changes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        preconditions: Preconditions,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """See the port."""
        content, body = patch_body(changes, preconditions)
        subject = path_of(kind, namespace, name)
        path = subject + (f"/{subresource}" if subresource else "")
        query = [("fieldManager", self._manager), ("fieldValidation", "Strict")]
        query += [("dryRun", "All")] if dry_run else []
        how = content.value
        return await self._call("PATCH", path, query, body, content=how, subject=subject)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        preconditions: Preconditions,
        propagation: Propagation = Propagation.BACKGROUND,
        grace_seconds: int | None = None,
    ) -> None:
        """See the port."""
        check_delete(kind, preconditions)
        meant = {"uid": preconditions.uid}
        if preconditions.resource_version:
            meant["resourceVersion"] = preconditions.resource_version
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": meant,
            "propagationPolicy": propagation.value,
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        path = path_of(kind, namespace, name)
        await self._call("DELETE", path, (), body, content=_JSON, subject=path)

    # -- requests -----------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        path: str,
        query: Query = (),
        body: Any = None,
        *,
        content: str = "",
        subject: str = "",
    ) -> Object:
        """Make one call that returns an object."""
        answer = await self._send(verb, path, query, body, content=content, subject=subject)
        return _parsed(answer)

    async def _send(
        self,
        verb: str,
        path: str,
        query: Query = (),
        body: Any = None,
        *,
        content: str = "",
        subject: str = "",
    ) -> bytes:
        """Make one call with retries; for a write, `subject` is the path of the object.

        Raises:
            KubeError: Error of the last attempt.
        """
        bounds, time = self._bounds, asyncio.get_running_loop().time
        distinguishes = subject != "" and bounds.silence_s > 0
        took_s = 0.0
        for attempt in range(1, bounds.attempts_max + 1):
            began_s = time()
            try:
                async with self._turn:
                    if verb != "GET" and self._fence is not None:
                        self._fence.check(_namespace_of(path))
                    if distinguishes:
                        self._silence.check(written(path, subject), time())
                    began_s = time()
                    return await self._attempt(verb, path, query, body, content, subject)
            except _RefusedError as refused:
                took_s += time() - began_s
                is_last = attempt == bounds.attempts_max
                has_hung = distinguishes and took_s >= bounds.hung_s
                if not (is_last or has_hung) and is_retried(verb, refused.error):
                    await self._sleep(self._wait_s(attempt, refused.retry_after_s))
                    continue
                error = refused.error
                if distinguishes and isinstance(error, UnavailableError):
                    error = await self._distinguish(error, path, subject, has_hung=has_hung)
                raise error from refused.__cause__
        raise AssertionError("unreachable")

    async def _distinguish(
        self, error: KubeError, path: str, subject: str, *, has_hung: bool
    ) -> KubeError:
        """Return the error of a write: `UnansweredError` if its object can still be read."""
        try:
            async with self._turn:
                await self._attempt("GET", subject, (), None, "")
        except _RefusedError as refused:
            if isinstance(refused.error, UnavailableError):
                return error
        if has_hung:
            now_s = asyncio.get_running_loop().time()
            self._silence.note(written(path, subject), error.message, now_s)
        answer = f"HTTP {error.status}; " if error.status else ""
        message = f"{error.message} ({answer}reads are answered)"
        return UnansweredError(message, status=error.status)

    async def _attempt(
        self, verb: str, path: str, query: Query, body: Any, content: str, subject: str = ""
    ) -> bytes:
        # The path of a create does not name the object.
        named = subject if verb == "POST" and subject else path
        headers = {"Accept": _JSON} | ({"Content-Type": content} if content else {})
        try:
            async with asyncio.timeout(self._bounds.request_s):
                request = await self._api.param_serialize(
                    verb,
                    path,
                    query_params=list(query),
                    header_params=headers,
                    body=body,
                    auth_settings=["BearerToken"],
                )
                answer = await self._api.call_api(
                    *request, _request_timeout=aiohttp.ClientTimeout(total=self._bounds.request_s)
                )
                text: bytes = await answer.read()  # type: ignore[no-untyped-call]  # it has no types
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
            self._count(verb, "error")
            message = f"{verb} {named}: {type(error).__name__}: {error}".rstrip(": ")
            raise _RefusedError(UnavailableError(message)) from error
        self._count(verb, str(answer.status))
        if 200 <= answer.status < 300:
            return text
        refusal = error_of(verb, named, answer.status, text)
        raise _RefusedError(refusal, answer.headers.get("Retry-After", ""))

    def _wait_s(self, attempt: int, asked_s: float) -> float:
        bounds = self._bounds
        longest = min(bounds.backoff_s * float(2 ** (attempt - 1)), bounds.backoff_max_s)
        own = longest * (0.5 + 0.5 * self._rng.random())
        return max(own, min(asked_s, bounds.backoff_max_s))

    def _count(self, verb: str, outcome: str) -> None:
        if self._on_answer is not None:
            self._on_answer(verb, outcome)


class _RefusedError(Exception):
    """A failed attempt, with the inputs of the retry decision."""

    def __init__(self, error: KubeError, retry_after: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0


@asynccontextmanager
async def connect(*, in_flight_max: int) -> AsyncIterator[ApiClient]:
    """Connect to the API server of the pod, else of the user's kubeconfig (`KUBECONFIG`).

    Args:
        in_flight_max: Maximum number of concurrent connections.

    Raises:
        UnavailableError: Neither exists, or it cannot be read.
    """
    settings = Configuration()
    try:
        kube_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # no types
    except kube_config.ConfigException:
        try:
            # Read here, since the library uses the variable's value at its import.
            file = os.environ.get("KUBECONFIG")
            load = kube_config.load_kube_config
            await load(file, client_configuration=settings)  # type: ignore[no-untyped-call]  # no types
        except (kube_config.ConfigException, OSError) as error:
            raise UnavailableError(f"no credentials for the API server: {error}") from error
    settings.connection_pool_maxsize = in_flight_max
    settings.retries = None
    async with ApiClient(settings) as api:
        api.user_agent = FIELD_MANAGER
        yield api


def path_of(kind: Kind, namespace: str, name: str = "") -> str:
    """Return the path of an object, of a namespace's objects, or of all objects of a kind."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    assert kind.is_namespaced or not namespace, f"{kind.plural} have no namespaces"
    assert not name or namespace or not kind.is_namespaced, f"{kind.plural} have namespaces"
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    which = f"/{quote(name, safe='')}" if name else ""
    return f"{root}{where}/{kind.plural}{which}"


def _namespace_of(path: str) -> str:
    """Return the namespace in a path from `path_of`; empty for none."""
    _, _, rest = path.partition("/namespaces/")
    return unquote(rest.partition("/")[0])


def _named(found: Object, kind: Kind) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **found}


def _parsed(text: bytes) -> Object:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
