"""Interprets a status like tools: kstatus (Flux, Helm, kpt) and `kubectl wait`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def kstatus(body: Object) -> str:
    """Return the state of a resource by the rules of kstatus alone."""
    status = body.get("status", {})
    found = {one["type"]: one["status"] for one in status.get("conditions", ())}
    generation = body["metadata"]["generation"]
    if body["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"


def is_waited_for(body: Object, condition: str = "Ready") -> bool:
    """Return whether `kubectl wait --for=condition=...` would return now.

    It ignores a condition of an older generation, if the condition, or else the status, has its
    generation.
    """
    status = body.get("status", {})
    for one in status.get("conditions", ()):
        if one["type"] == condition and one["status"] == "True":
            observed = one.get("observedGeneration", status.get("observedGeneration"))
            return observed is None or observed >= body["metadata"]["generation"]
    return False


def stale_claims(body: Object) -> list[str]:
    """Return claims of a status that do not apply to the current generation.

    A resource may be Current, or waited for, only if the status and its condition Ready are both of
    the current generation.
    """
    if kstatus(body) != "Current" and not is_waited_for(body):
        return []
    generation = body["metadata"]["generation"]
    status = body.get("status", {})
    ready = [one for one in status.get("conditions", ()) if one["type"] == "Ready"]
    where = f"generation {generation}"
    if not ready:
        return [f"{where}: current without a condition Ready"]
    found = []
    if status.get("observedGeneration") != generation:
        found.append(f"{where}: done by a status of {status.get('observedGeneration')}")
    if ready[0].get("observedGeneration") != generation:
        found.append(f"{where}: ready by a condition of {ready[0].get('observedGeneration')}")
    return found
