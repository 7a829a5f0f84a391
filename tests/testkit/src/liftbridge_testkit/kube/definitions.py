"""Definitions of this release on a cluster, and of other releases with one field more or less.

define(kubernetes)                  # there
with in_place(kubernetes): ...      # there, and gone again where they had not been
refused = refusal(kubernetes, older(RESOURCES[0], "podTemplate.priorityClassName"))
chart = next_chart(tmp_path)        # of the operator, whose clusters have a field `later`
restore(kubernetes)                 # ours again, whatever was tried
"""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import yaml

from liftbridge_operator.model.crds import guard
from liftbridge_operator.model.crds.definitions import RESOURCES, Resource, definition
from liftbridge_testkit.kube.cluster import CommandError
from liftbridge_testkit.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from liftbridge_testkit.kube.cluster import Kubernetes

DEPLOYED: Final = ROOT / "deploy" / "crds"
CHART: Final = ROOT / "helm" / "liftbridge-operator"
LATER: Final = {"type": "object", "properties": {"a": {"type": "string"}}}
IN_FORCE_SECONDS_MAX: Final = 120.0
"""Limit of waits: the API server takes some time to enforce a policy, or to stop that."""
POLL_SECONDS: Final = 0.2

Object = dict[str, Any]


def define(kubernetes: Kubernetes) -> None:
    """Apply the definitions of this release, and wait until they are in use.

    Raises:
        CommandError: The API server refused.
        AssertionError: They are not in use in time.
    """
    kubernetes.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEPLOYED))
    await_use(kubernetes, *(resource.name for resource in RESOURCES))


def await_use(kubernetes: Kubernetes, *names: str) -> None:
    """Wait until definitions are in use; `kubectl wait` fails if there are no conditions yet.

    Raises:
        AssertionError: They are not in use in time.
    """
    for name in names:
        until(partial(_is_in_use, kubernetes, name), f"{name} is in use")


def _is_in_use(kubernetes: Kubernetes, name: str) -> bool:
    body = json.loads(kubernetes.kubectl("get", "crd", name, "--output=json"))
    conditions = (body.get("status") or {}).get("conditions") or ()
    return ("Established", "True") in {
        (condition["type"], condition["status"]) for condition in conditions
    }


@contextmanager
def in_place(kubernetes: Kubernetes) -> Iterator[None]:
    """Apply the definitions while the context is open; remove them if they were not there before.

    Raises:
        CommandError: The API server refused.
        AssertionError: They are not in use in time.
    """
    files = ("-f", str(DEPLOYED))
    present = kubernetes.kubectl("get", "--ignore-not-found", "-o", "name", *files)
    try:
        define(kubernetes)
        yield
    finally:
        if not present:
            kubernetes.kubectl("delete", "--ignore-not-found", "--timeout=60s", *files)


def older(resource: Resource, place: str) -> Object:
    """Return the definition of a release that did not have a field yet.

    Args:
        resource: Definition of this release.
        place: Path of the field below `spec`; no rule may use it.
    """
    body = definition(resource)
    schema = _specification(body)
    *parents, last = place.split(".")
    node = schema
    for name in parents:
        node = node["properties"][name]
    del node["properties"][last]
    return _listed(body, schema)


def newer(resource: Resource) -> Object:
    """Return the definition of a release with a field `later` that has a field `a`."""
    body = definition(resource)
    schema = _specification(body)
    schema["properties"]["later"] = LATER
    return _listed(body, schema)


def _specification(body: Object) -> Object:
    version = body["spec"]["versions"][0]
    found: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _listed(body: Object, schema: Object) -> Object:
    body["metadata"]["annotations"] = {guard.FIELDS: " ".join(guard.fields(schema))}
    return body


def next_chart(folder: Path) -> Path:
    """Return the chart of the next release, in a folder: a cluster may have a field `later`."""
    made = folder / CHART.name
    shutil.copytree(CHART, made)
    clusters = RESOURCES[0]
    text = yaml.safe_dump(newer(clusters))
    (made / "files" / "crds" / f"{clusters.name}.yaml").write_text(text, encoding="utf-8")
    return made


def refusal(kubernetes: Kubernetes, body: Object, *options: str) -> str:
    """Return the reason why a definition is refused; empty if it is accepted."""
    apply = ("apply", "--server-side", "--force-conflicts", *options, "-f", "-")
    try:
        kubernetes.kubectl(*apply, text=json.dumps(body))
    except CommandError as error:
        return str(error)
    return ""


def _is_taken(kubernetes: Kubernetes, body: Object) -> bool:
    return not refusal(kubernetes, body)


def restore(kubernetes: Kubernetes) -> None:
    """Restore the definitions of this release and their guard, whatever was tried.

    Raises:
        AssertionError: They are not restored in time.
    """
    kubernetes.kubectl(
        "delete", "validatingadmissionpolicybinding", guard.NAME, "--ignore-not-found"
    )
    for resource in RESOURCES:
        until(partial(_is_taken, kubernetes, definition(resource)), f"{resource.name} is taken")
    define(kubernetes)
    tried = older(RESOURCES[0], "podTemplate.priorityClassName")
    until(lambda: refusal(kubernetes, tried, "--dry-run=server"), "the policy is in force")


def until(
    condition: Callable[[], Any], what: str, seconds_max: float = IN_FORCE_SECONDS_MAX
) -> None:
    """Wait until a condition holds; a failed command counts as false."""
    pause = threading.Event().wait
    deadline = monotonic() + seconds_max
    while True:
        try:
            if condition():
                return
        except CommandError:
            pass
        assert monotonic() < deadline, f"not {what}"
        pause(POLL_SECONDS)
