"""Read the API server's audit log: the author of each write, and the used rights.

The log is `audit.log` in the state of the project's own cluster, one JSON object a line;
`audit-policy.yaml` beside its scripts defines its content. Rotated parts are read before it.

`python -m liftbridge_testkit.kube.audit FILE [USER]` prints the requests by user, verb and kind of
object, or only those of a named user.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
LEASES = "leases.coordination.k8s.io"
DECISION = "authorization.k8s.io/decision"


class Request(NamedTuple):
    """One answered request.

    Attributes:
        at: Time at which the API server received it.
        user: Author, a service account as `system:serviceaccount:NAMESPACE:NAME`.
        verb: Verb as in a rule of RBAC.
        resource: Resource as in a rule of RBAC, with its group: `pods/status`,
            `streams.liftbridge.io`.
        namespace: Namespace of the object; empty for cluster-wide objects.
        name: Name of the object; empty for lists and for generated names.
        code: HTTP status of the answer.
        is_forbidden: Whether the user has no right to it; a 403 may have other causes, such as a
            namespace that is being deleted.
    """

    at: datetime
    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    is_forbidden: bool = False

    @property
    def is_write(self) -> bool:
        """Return whether it changed something, or would have."""
        return self.verb in WRITES


def parse(lines: Iterable[str]) -> Iterator[Request]:
    """Yield requests about objects; a watch or a partial read counts once, at its end."""
    for line in lines:
        event = json.loads(line)
        found = event.get("objectRef")
        if event["stage"] != "ResponseComplete" or found is None:
            continue
        kind = ".".join(filter(None, [found["resource"], found.get("apiGroup", "")]))
        part = found.get("subresource", "")
        yield Request(
            at=datetime.fromisoformat(event["requestReceivedTimestamp"]),
            user=event["user"]["username"],
            verb=event["verb"],
            resource=f"{kind}/{part}" if part else kind,
            namespace=found.get("namespace", ""),
            name=found.get("name", ""),
            code=event.get("responseStatus", {}).get("code", 0),
            is_forbidden=event.get("annotations", {}).get(DECISION) == "forbid",
        )


def read(path: Path) -> Iterator[Request]:
    """Yield the requests of a log and of its rotated parts, the oldest first."""
    for part in (*sorted(path.parent.glob(f"{path.stem}-*{path.suffix}")), path):
        with part.open(encoding="utf-8") as file:
            yield from parse(file)


def writes(
    requests: Iterable[Request], user: str, since: datetime, *, leases: bool = False
) -> list[Request]:
    """Return the writes of a user since a moment; without leases unless requested."""
    return [
        each
        for each in requests
        if each.is_write
        and each.user == user
        and each.at >= since
        and (leases or each.resource != LEASES)
    ]


def rights_used(requests: Iterable[Request], user: str) -> Counter[tuple[str, str]]:
    """Return the number of allowed requests of a user for each (verb, resource)."""
    return Counter(
        (each.verb, each.resource) for each in requests if each.user == user and each.code < 400
    )


def main(path: Path, user: str = "") -> str:
    """Return the table that the command prints."""
    counts = Counter((r.user, r.verb, r.resource) for r in read(path) if user in {"", r.user})
    return "".join(f"{count:7} {' '.join(key)}\n" for key, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), *sys.argv[2:3]))
