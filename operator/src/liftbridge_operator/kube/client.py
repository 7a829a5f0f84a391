"""The port to a real API server, on the asyncio client of the `kubernetes` package.

The library brings credentials, TLS and connections; addresses and bodies are made here, since the
operator works on plain objects and on kinds that the library has no classes for. Its own retries
are off: what is sent again, and how often, is decided below.
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
"""Objects of one page of a list, as kubectl reads them."""

PAGES_MAX: Final = 200
_APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json"

Sleep = Callable[[float], Awaitable[None]]
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long and how often things are tried.

    Attributes:
        request_s: One request, from its beginning to the end of its answer.
        attempts_max: Requests of one call, the first included.
        backoff_s: Longest wait before the second attempt; doubles with each further one.
        backoff_max_s: Longest wait, also of those the API server asks for.
        in_flight_max: Requests at the same time; others wait for their turn.
        hung_s: A write without an answer for so long hangs, and is not sent again.
        silence_s: So long no other write of the kind of one that hung is sent; with 0 writes are
            like reads, and nobody asks whether reads are answered.
    """

    request_s: float = 10.0
    attempts_max: int = 4
    backoff_s: float = 0.25
    backoff_max_s: float = 4.0
    in_flight_max: int = 32
    hung_s: float = 5.0
    silence_s: float = 0.0


class KubeClient:
    """The API server by HTTP.

    Safe calls (reads, applies, patches and deletions with preconditions) are sent again after a
    broken connection; a create is sent again only when the API server refused to look at it. Every
    attempt of a write asks the fence first. A write that hangs or fails while reads are answered is
    told apart from an API server that is away.
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
        """A client over connections of its own.

        Args:
            api: Open; belongs to the caller.
            fence: Asked before each write; None for a client that nobody fences.
            rng: Of the jitter.
            bounds: How long and how often.
            sleep: What waits between attempts.
            on_answer: Told of each attempt: verb, and status or `error`.
            manager: Who owns what is created and patched.
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
        """As the port."""
        found = await self._call("GET", path_of(kind, namespace, name))
        return _named(found, kind)

    async def list_all(
        self, kind: Kind, namespace: str, *, selector: str = "", fields: str = ""
    ) -> Listing:
        """As the port."""
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
            # Items of built-in kinds do not say what they are.
            items += (_named(item, kind) for item in page.get("items") or ())
            token = page["metadata"].get("continue", "")
            if not token:
                return Listing(tuple(items), page["metadata"].get("resourceVersion", ""))
        raise UnavailableError(f"{kind.qualified}: more than {PAGES_MAX * PAGE_ITEMS} objects")

    async def read_raw(self, path: str, query: Query = ()) -> bytes:
        """Read what is no object, such as the log of a pod.

        Args:
            path: Its address.
            query: Parameters.

        Raises:
            KubeError: As for reads of objects.
        """
        return await self._send("GET", path, query)

    async def read_object(self, path: str) -> Object:
        """Read what is an object of no kind, such as the version of the API server.

        Raises:
            KubeError: As for reads of objects.
        """
        return await self._call("GET", path)

    # -- writes -------------------------------------------------------------------------------

    async def create(self, body: Object, *, dry_run: bool = False) -> Object:
        """As the port."""
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
        """As the port."""
        kind = kind_of(body)
        check_apply(body, kind, force=force)
        metadata = body["metadata"]
        path = path_of(kind, metadata.get("namespace", ""), metadata["name"])
        return await self._apply(path, "", body, manager, force=force)

    async def apply_status(self, body: Object, *, manager: str = STATUS_MANAGER) -> Object:
        """As the port."""
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
        """As the port."""
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
        """As the port."""
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
        """One call that is answered by an object."""
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
        """One call with its attempts; of a write `subject` is the address of the object.

        Raises:
            KubeError: The last attempt's.
        """
        bounds, time = self._bounds, asyncio.get_running_loop().time
        tells_apart = subject != "" and bounds.silence_s > 0
        took_s = 0.0
        for attempt in range(1, bounds.attempts_max + 1):
            began_s = time()
            try:
                async with self._turn:
                    if verb != "GET" and self._fence is not None:
                        self._fence.check(_namespace_of(path))
                    if tells_apart:
                        self._silence.check(written(path, subject), time())
                    began_s = time()
                    return await self._attempt(verb, path, query, body, content, subject)
            except _RefusedError as refused:
                took_s += time() - began_s
                is_last = attempt == bounds.attempts_max
                has_hung = tells_apart and took_s >= bounds.hung_s
                if not (is_last or has_hung) and is_retried(verb, refused.error):
                    await self._sleep(self._wait_s(attempt, refused.retry_after_s))
                    continue
                error = refused.error
                if tells_apart and isinstance(error, UnavailableError):
                    error = await self._told_apart(error, path, subject, has_hung=has_hung)
                raise error from refused.__cause__
        raise AssertionError("unreachable")

    async def _told_apart(
        self, error: KubeError, path: str, subject: str, *, has_hung: bool
    ) -> KubeError:
        """What a write ended with: one that fails alone, if its object can be read all the same."""
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
        # The address of a create does not say what is created.
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
            self._tell(verb, "error")
            message = f"{verb} {named}: {type(error).__name__}: {error}".rstrip(": ")
            raise _RefusedError(UnavailableError(message)) from error
        self._tell(verb, str(answer.status))
        if 200 <= answer.status < 300:
            return text
        refusal = error_of(verb, named, answer.status, text)
        raise _RefusedError(refusal, answer.headers.get("Retry-After", ""))

    def _wait_s(self, attempt: int, asked_s: float) -> float:
        bounds = self._bounds
        longest = min(bounds.backoff_s * float(2 ** (attempt - 1)), bounds.backoff_max_s)
        own = longest * (0.5 + 0.5 * self._rng.random())
        return max(own, min(asked_s, bounds.backoff_max_s))

    def _tell(self, verb: str, outcome: str) -> None:
        if self._on_answer is not None:
            self._on_answer(verb, outcome)


class _RefusedError(Exception):
    """An attempt that failed, with what decides whether there is another one."""

    def __init__(self, error: KubeError, retry_after: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0


@asynccontextmanager
async def connect(*, in_flight_max: int) -> AsyncIterator[ApiClient]:
    """Connections to the API server of the pod, else of the user's kubeconfig (`KUBECONFIG`).

    Args:
        in_flight_max: Connections at the same time.

    Raises:
        UnavailableError: Neither is there, or cannot be read.
    """
    settings = Configuration()
    try:
        kube_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # no types
    except kube_config.ConfigException:
        try:
            # Named here, since the library takes what the variable was when it was imported.
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
    """Address of an object, of a namespace's objects, or of all of a kind."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    assert kind.is_namespaced or not namespace, f"{kind.plural} have no namespaces"
    assert not name or namespace or not kind.is_namespaced, f"{kind.plural} have namespaces"
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    which = f"/{quote(name, safe='')}" if name else ""
    return f"{root}{where}/{kind.plural}{which}"


def _namespace_of(path: str) -> str:
    """Namespace of an address that `path_of` made; empty for none."""
    _, _, rest = path.partition("/namespaces/")
    return unquote(rest.partition("/")[0])


def _named(found: Object, kind: Kind) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **found}


def _parsed(text: bytes) -> Object:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
