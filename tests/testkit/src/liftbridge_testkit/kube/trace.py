"""Records requests to an API server through the operator's port, and the responses, line by line.

    recorder = Recorder()
    kube = recorder.of(KubeClient(api, fence=None, rng=Random(1)))
    ...                                     # use it as any other
    path.write_text(text_of(recorder.lines()))

Requests are sequential, so the order of the lines is the order in which they took effect. Uids are
numbered in the order of their appearance, and resource versions in their own order, so that two
recordings of the same actions are equal. All times from the server are replaced by one time. Of
Secrets, only keyed hashes are written, whose key is discarded.
"""

import asyncio
import hmac
import inspect
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from liftbridge_operator.kube.errors import (
    ApplyConflictError,
    FencedError,
    KubeError,
    UnavailableError,
)
from liftbridge_operator.kube.kinds import ALL_KINDS, Kind
from liftbridge_operator.kube.port import FIELD_MANAGER, Kube, Listing, Preconditions

LINES_MAX: Final = 20_000
MOMENT: Final = "2026-01-01T00:00:00Z"
UID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
VERSIONS: Final = frozenset({"resourceVersion", "resource_version"})

_MOMENTS: Final = frozenset({"creationTimestamp", "deletionTimestamp", "time"})
_KINDS: Final = {f"{kind.api_version} {kind.kind}": kind for kind in ALL_KINDS}
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class Line(NamedTuple):
    """One request with its answer, as JSON.

    Attributes:
        who: Owner of the fields that it creates and patches.
        verb: Method of the port.
        asked: Arguments of the method by name.
        answer: `object`, `items` with their `resource_version`, or `error`; empty for a deletion.
    """

    who: str
    verb: str
    asked: dict[str, Any]
    answer: dict[str, Any]

    @property
    def error(self) -> dict[str, Any]:
        """Return the error of the answer; empty when there was none."""
        found: dict[str, Any] = self.answer.get("error", {})
        return found

    @property
    def place(self) -> tuple[str, str, str]:
        """Kind, namespace and name of the object; no name for lists."""
        body = self.asked.get("body")
        if body is None:
            return self.asked["kind"], self.asked["namespace"], self.asked.get("name", "")
        metadata = body["metadata"]
        kind = f"{body['apiVersion']} {body['kind']}"
        return kind, metadata.get("namespace", ""), metadata["name"]


class Recorder:
    """Records all calls through the ports that it returns.

    It stops after a maximum number of lines, and after a write with an unknown outcome; the lines
    before remain correct.
    """

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self._lines_max = lines_max
        self._lines: list[Line] = []
        self._is_over = False
        self._turn = asyncio.Lock()
        self._key = secrets.token_bytes(32)

    def of(self, kube: Kube, who: str = FIELD_MANAGER) -> Kube:
        """Return a port that records all calls through it.

        Args:
            kube: Port that executes requests.
            who: Manager of the client.
        """
        return _RecordedKube(kube, who, self)  # type: ignore[return-value]  # by __getattr__

    def lines(self) -> list[Line]:
        """Return the recorded lines, without values that differ between runs."""
        return list(_numbered(self._lines))

    async def ask(
        self, who: str, verb: str, asked: Mapping[str, Any], call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Execute a request and record it."""
        async with self._turn:
            try:
                found = await call()
            except FencedError:
                raise  # it was never sent
            except KubeError as error:
                self._keep(who, verb, asked, {"error": error_of(error)}, error)
                raise
            self._keep(who, verb, asked, answer_of(found))
            return found

    def _keep(
        self,
        who: str,
        verb: str,
        asked: Mapping[str, Any],
        answer: dict[str, Any],
        error: KubeError | None = None,
    ) -> None:
        is_read = verb in {"get", "list_all"}
        if isinstance(error, UnavailableError):
            self._is_over |= not is_read
            return
        if not self._is_over and len(self._lines) < self._lines_max:
            # Through text, so that later changes by the caller have no effect.
            kept = json.loads(json.dumps([asked, answer], default=_plain))
            self._lines.append(Line(who, verb, *(_hidden(one, self._key) for one in kept)))


class _RecordedKube:
    def __init__(self, kube: Kube, who: str, recorder: Recorder) -> None:
        self._kube, self._who, self._recorder = kube, who, recorder

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        signature = inspect.signature(getattr(Kube, verb))

        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs).arguments
            asked = {name: _plain(value) for name, value in bound.items() if name != "self"}
            run = getattr(self._kube, verb)
            return await self._recorder.ask(self._who, verb, asked, lambda: run(*args, **kwargs))

        return call


# -- as JSON and back ---------------------------------------------------------------------------


def answer_of(found: Any) -> dict[str, Any]:
    """Return the recorded form of a successful answer."""
    if isinstance(found, Listing):
        return {"items": list(found.items), "resource_version": found.resource_version}
    return {} if found is None else {"object": found}


def error_of(error: KubeError) -> dict[str, Any]:
    """Return the recorded form of a refusal; its text is omitted, since nothing depends on it."""
    made: dict[str, Any] = {
        "class": type(error).__name__,
        "status": error.status,
        "reason": error.reason,
    }
    if isinstance(error, ApplyConflictError):
        made["fields"] = sorted([field.manager, field.field] for field in error.fields)
    return made


def arguments_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for a method of the port."""
    found = dict(asked)
    if "kind" in found:
        found["kind"] = kind_named(found["kind"])
    if "preconditions" in found:
        found["preconditions"] = Preconditions(**found["preconditions"])
    return found


def kind_named(name: str) -> Kind:
    """Return a kind by its name in traces, such as `apps/v1 StatefulSet`."""
    return _KINDS[name]


def text_of(lines: Iterable[Line]) -> str:
    """Return a trace as JSON, a line for each request."""
    return "".join(json.dumps(line._asdict(), sort_keys=True) + "\n" for line in lines)


def lines_of(text: str) -> list[Line]:
    """Parse the output of `text_of`."""
    return [Line(**json.loads(line)) for line in text.splitlines()]


def _plain(value: Any) -> Any:
    if isinstance(value, Kind):
        return f"{value.api_version} {value.kind}"
    return value._asdict() if isinstance(value, Preconditions) else value


# -- values that are not kept unchanged
# -----------------------------------------------------------------


def _hidden(value: Any, key: bytes) -> Any:
    """Return arguments or an answer, with hashes instead of secrets."""
    for one in (value.get("body"), value.get("object"), *(value.get("items") or ())):
        if one and one.get("kind") == "Secret":
            _hide(one, key)
    if value.get("kind") == "v1 Secret":
        changes = value.get("changes", ())
        for one in (changes,) if isinstance(changes, dict) else changes:
            _hide(one, key)
            if one.get("path", "").startswith(("/data", "/stringData")) and "value" in one:
                one["value"] = _hashed(one["value"], key)
    return value


def _hide(secret: dict[str, Any], key: bytes) -> None:
    for part in ("data", "stringData"):
        if part in secret:
            secret[part] = _hashed(secret[part], key)
    (secret.get("metadata", {}).get("annotations") or {}).pop(_APPLIED, None)


def _hashed(value: Any, key: bytes) -> Any:
    if isinstance(value, dict):
        return {name: _hashed(inner, key) for name, inner in value.items()}
    return value and hmac.digest(key, value.encode(), "sha256").hex()[:32]


def _numbered(lines: list[Line]) -> Iterator[Line]:
    """Replace uids and versions by numbers in their order, and all times by one time."""
    text = text_of(lines)
    uids = {uid: number for number, uid in enumerate(dict.fromkeys(UID.findall(text)), 1)}
    text = UID.sub(lambda met: f"00000000-0000-0000-0000-{uids[met[0]]:012}", text)
    values = [json.loads(line) for line in text.splitlines()]
    found = sorted({int(one) for one in _versions_in(values)})
    ranks = {str(version): str(rank) for rank, version in enumerate(found, 1)}
    for value in values:
        yield Line(**_steady(value, ranks))


def _versions_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in VERSIONS and inner:
                yield inner
            else:
                yield from _versions_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _versions_in(inner)


def _steady(value: Any, ranks: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_steady(inner, ranks) for inner in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, inner in value.items():
        if name in VERSIONS:
            made[name] = ranks.get(inner, inner)
        elif name in _MOMENTS and isinstance(inner, str):
            made[name] = MOMENT
        else:
            made[name] = _steady(inner, ranks)
    return made
