"""The API server in memory over HTTP, to test clients with their real requests.

    async with ApiOverHttp(MemoryKube()) as api:
        os.environ["KUBECONFIG"] = str(api.write_kubeconfig(folder))

It answers discovery, reads, lists by pages, watches with bookmarks, and all writes of the
operator's port. It records every request with its user agent; `api.refuse` plants answers.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import yaml
from aiohttp import web

from liftbridge_operator.kube.errors import (
    AlreadyExistsError,
    ApplyConflictError,
    ConflictError,
    InvalidError,
    KubeError,
    NotFoundError,
)
from liftbridge_operator.kube.kinds import ALL_KINDS, Kind
from liftbridge_operator.kube.port import Object, Preconditions, Propagation
from liftbridge_testkit.kube.fields import selects
from liftbridge_testkit.kube.memory import MemoryKube

TOKEN: Final = "a-token-of-the-tests"
BOOKMARK_SECONDS: Final = 0.2
UNTIL_SECONDS_MAX: Final = 90.0
_END: Final = "END"


class Request(NamedTuple):
    """A request that was received.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        query: Parameters.
        agent: `User-Agent`.
        body: Body as JSON; None without a body.
        content: `Content-Type`.
    """

    method: str
    path: str
    query: dict[str, str]
    agent: str
    body: Any
    content: str


class Planted(NamedTuple):
    """An answer instead of the real answer."""

    status: int
    headers: dict[str, str]
    text: str


class ApiOverHttp:
    """A server on a free port of loopback.

    Attributes:
        kube: The objects.
        requests: Received requests, in order.
        host: `http://127.0.0.1:port`.
    """

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.requests: list[Request] = []
        self.host = ""
        self._halved: list[tuple[str, Callable[[web.Request], Awaitable[None]]]] = []
        self._failing: tuple[str, Planted, bool] | None = None
        self._planted: list[tuple[str, str, Planted | Callable[[], Awaitable[None]]]] = []
        self._watchers: set[tuple[Kind, str, str, asyncio.Queue[Any]]] = set()
        self._runner: web.AppRunner | None = None
        self._happened = asyncio.Event()
        self._history: list[tuple[str, Object]] = []

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds that depends on requests or changes of objects.

        Raises:
            TimeoutError: It does not hold within `UNTIL_SECONDS_MAX`.
        """
        async with asyncio.timeout(UNTIL_SECONDS_MAX):
            while not is_so():
                self._happened.clear()
                await self._happened.wait()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.kube.on_change = self._publish
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_watches()
        assert self._runner is not None
        await self._runner.cleanup()

    def write_kubeconfig(self, folder: Path) -> Path:
        """Return a kubeconfig for this server."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "t",
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "clusters": [{"name": "t", "cluster": {"server": self.host}}],
            "users": [{"name": "t", "user": {"token": TOKEN}}],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def refuse(
        self,
        method: str,
        status: int,
        text: str = "",
        headers: dict[str, str] | None = None,
        path: str = "",
    ) -> None:
        """Refuse the next request of a method, to this path or to any."""
        self._planted.append((method, path, Planted(status, headers or {}, text)))

    def hold(self, method: str, until: Callable[[], Awaitable[None]]) -> None:
        """Delay the answer to the next request of a method, which is executed before."""
        self._planted.append((method, "", until))

    def halve(self, method: str, until: Callable[[], Awaitable[None]]) -> None:
        """Answer the next request of a method by half an answer, and end it only at release."""

        async def told(request: web.Request) -> None:
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"kind":')
            await until()

        self._halved.append((method, told))

    def fail_all(self, path: str, status: int, text: str = "", *, is_done: bool = False) -> None:
        """Answer all writes to paths with this text so, executed or not; status 0 for no answer."""
        told = json.dumps({"kind": "Status", "message": text})
        self._failing = (path, Planted(status, {}, told), is_done) if status else None

    def end_watches(self) -> None:
        """End all open watches, as a server that stops."""
        for *_, queue in self._watchers:
            queue.put_nowait(_END)

    @property
    def watched(self) -> int:
        """Open watches."""
        return len(self._watchers)

    @property
    def writes(self) -> list[Request]:
        """Requests that write."""
        return [request for request in self.requests if request.method != "GET"]

    # -- inside -------------------------------------------------------------------------------

    def _publish(self, event: str, value: Object) -> None:
        self._happened.set()
        self._history.append((event, value))
        for kind, namespace, selector, queue in self._watchers:
            if _is_seen(value, kind, namespace, selector):
                queue.put_nowait({"type": event, "object": value})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        received = Request(
            request.method,
            request.path,
            dict(request.query),
            request.headers.get("User-Agent", ""),
            json.loads(text) if text else None,
            request.headers.get("Content-Type", ""),
        )
        self.requests.append(received)
        self._happened.set()
        if request.headers.get("Authorization", "").lower() != f"bearer {TOKEN}":
            return _failure(401, "Unauthorized", "no token")
        if self._halved and self._halved[0][0] == request.method:
            await self._halved.pop(0)[1](request)
        planted = self._take_planted(request.method, request.path)
        if isinstance(planted, Planted):
            return web.Response(status=planted.status, text=planted.text, headers=planted.headers)
        path, failure, is_done = self._failing or ("", None, False)
        if request.method == "GET" or path not in request.path:
            failure = None
        if failure is not None and not is_done:
            return web.Response(status=failure.status, text=failure.text)
        try:
            answer = await self._answer(request, received)
        except KubeError as error:
            answer = _told(error)
        if failure is not None and answer.status < 400:
            return web.Response(status=failure.status, text=failure.text)
        if planted is not None:
            await planted()
        return answer

    def _take_planted(
        self, method: str, path: str
    ) -> Planted | Callable[[], Awaitable[None]] | None:
        for entry in self._planted:
            if entry[0] == method and entry[1] in ("", path):
                self._planted.remove(entry)
                return entry[2]
        return None

    async def _answer(self, request: web.Request, received: Request) -> web.StreamResponse:
        found = _discovery(received.path)
        if found is not None:
            return web.json_response(found)
        place = _place(received.path)
        if received.method == "GET" and received.query.get("watch") == "true":
            return await self._watch(request, *place[:2])
        status = 201 if received.method == "POST" else 200
        return web.json_response(await self._object(received, *place), status=status)

    async def _object(
        self, received: Request, kind: Kind, namespace: str, name: str, part: str
    ) -> Object:
        match received.method:
            case "GET" if name:
                return await self.kube.get(kind, namespace, name)
            case "GET":
                return await self._list(kind, namespace, received.query)
            case "POST":
                return await self.kube.create(received.body)
            case "PATCH":
                return await self._patch(kind, namespace, name, part, received)
            case "DELETE":
                return await self._delete(kind, namespace, name, received.body)
            case method:
                raise InvalidError(f"{method} is not allowed", status=405)

    async def _list(self, kind: Kind, namespace: str, query: dict[str, str]) -> Object:
        selector = query.get("labelSelector", "")
        fields = query.get("fieldSelector", "")
        found = await self.kube.list_all(kind, namespace, selector=selector, fields=fields)
        start = int(query.get("continue", "0"))
        end = start + int(query.get("limit", "100000"))
        metadata = {"resourceVersion": found.resource_version}
        if end < len(found.items):
            metadata["continue"] = str(end)
        # As on the real server, items of a list have no kind.
        items = [
            {key: part for key, part in item.items() if key not in {"apiVersion", "kind"}}
            for item in found.items[start:end]
        ]
        named = {"apiVersion": kind.api_version, "kind": f"{kind.kind}List"}
        return {**named, "metadata": metadata, "items": items}

    async def _patch(
        self, kind: Kind, namespace: str, name: str, part: str, received: Request
    ) -> Object:
        body, query = received.body, received.query
        if received.content.startswith("application/apply-patch"):
            manager = query["fieldManager"]
            if part == "status":
                return await self.kube.apply_status(body, manager=manager)
            return await self.kube.apply(body, force=query["force"] == "true", manager=manager)
        if isinstance(body, list):
            seen = {one["path"]: one["value"] for one in body[:2]}
            meant = Preconditions(
                seen.get("/metadata/uid", ""), seen.get("/metadata/resourceVersion", "")
            )
            changes: Any = [
                one
                for one in body
                if one["path"] not in {"/metadata/uid", "/metadata/resourceVersion"}
            ]
        else:
            metadata = dict(body.get("metadata", {}))
            meant = Preconditions(metadata.pop("uid", ""), metadata.pop("resourceVersion", ""))
            changes = {**body, "metadata": metadata}
        return await self.kube.patch(
            kind, namespace, name, changes, preconditions=meant, subresource=part
        )

    async def _delete(self, kind: Kind, namespace: str, name: str, body: Any) -> Object:
        meant = body["preconditions"]
        await self.kube.delete(
            kind,
            namespace,
            name,
            preconditions=Preconditions(meant["uid"], meant.get("resourceVersion", "")),
            propagation=Propagation(body["propagationPolicy"]),
            grace_seconds=body.get("gracePeriodSeconds"),
        )
        return {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        selector, since = (request.query.get(k, "") for k in ("labelSelector", "resourceVersion"))
        for event, value in self._history:
            version = int(value["metadata"]["resourceVersion"])
            if version > int(since or "0") and _is_seen(value, kind, namespace, selector):
                queue.put_nowait({"type": event, "object": value})
        watcher = (kind, namespace, selector, queue)
        self._watchers.add(watcher)
        self._happened.set()
        try:
            await self._stream(answer, kind, queue)
        except ConnectionError:
            return answer  # the client has gone
        finally:
            self._watchers.discard(watcher)
        return answer

    async def _stream(
        self, answer: web.StreamResponse, kind: Kind, queue: "asyncio.Queue[Any]"
    ) -> None:
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), BOOKMARK_SECONDS)
            except TimeoutError:
                version = self.kube.version
                named = {"apiVersion": kind.api_version, "kind": kind.kind}
                seen = {**named, "metadata": {"resourceVersion": version}}
                event = {"type": "BOOKMARK", "object": seen}
            if event == _END:
                return
            await answer.write(json.dumps(event).encode() + b"\n")


def _is_seen(value: Object, kind: Kind, namespace: str, selector: str) -> bool:
    """Return whether a watch shows an object."""
    metadata = value["metadata"]
    is_kind = (value["apiVersion"], value["kind"]) == (kind.api_version, kind.kind)
    is_there = namespace in ("", metadata.get("namespace", ""))
    return is_kind and is_there and selects(selector, metadata.get("labels", {}))


def _place(path: str) -> tuple[Kind, str, str, str]:
    """Return kind, namespace, name and sub-resource of an address.

    Raises:
        NotFoundError: The address has no kind.
    """
    parts = path.strip("/").split("/")
    group, version, rest = ("", parts[1], parts[2:])
    if parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    for kind in ALL_KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, rest[0]):
            padded = [*rest[1:], "", ""]
            return kind, namespace, padded[0], padded[1]
    raise NotFoundError("the server could not find the requested resource", status=404)


def _discovery(path: str) -> Object | None:
    """Answer discovery requests."""
    groups = sorted({(kind.group, kind.version) for kind in ALL_KINDS if kind.group})
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = []
        for group, version in groups:
            named = {"groupVersion": f"{group}/{version}", "version": version}
            found.append({"name": group, "versions": [named], "preferredVersion": named})
        return {"kind": "APIGroupList", "groups": found}
    for group, version in [("", "v1"), *groups]:
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        if path == root:
            return {"kind": "APIResourceList", "resources": list(_resources(group, version))}
    return None


def _resources(group: str, version: str) -> Iterator[Object]:
    for kind in ALL_KINDS:
        if (kind.group, kind.version) == (group, version):
            yield {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "kind": kind.kind,
                "namespaced": kind.is_namespaced,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            }


def _told(error: KubeError) -> web.Response:
    match error:
        case ApplyConflictError():
            causes = [
                {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{manager}" using v1',
                    "field": field,
                }
                for manager, field in error.fields
            ]
            return _failure(409, "Conflict", error.message, {"causes": causes})
        case AlreadyExistsError():
            return _failure(409, "AlreadyExists", error.message)
        case ConflictError():
            return _failure(409, "Conflict", error.message)
        case NotFoundError():
            return _failure(404, "NotFound", error.message)
        case _:
            return _failure(error.status or 500, error.reason or "InternalError", error.message)


def _failure(status: int, reason: str, message: str, details: Any = None) -> web.Response:
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": status,
        "reason": reason,
        "message": message,
        "details": details or {},
    }
    return web.json_response(body, status=status)
