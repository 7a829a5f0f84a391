"""Policy against replacing a definition by an older one, which would lose fields.

On every write to an object, the API server drops fields that the definition lacks, and a status is
written every few seconds. So each definition lists the fields of its specification in an
annotation, and a policy of the API server refuses a definition that lacks a field of the current
one, at `helm rollback` and from any other writer.
"""

from collections.abc import Iterator
from typing import Any, Final

from liftbridge_operator.model.base import GROUP
from liftbridge_operator.model.crds.structural import Schema

FIELDS: Final = f"{GROUP}/fields"
NAME: Final = f"definitions.{GROUP}"
_API: Final = "admissionregistration.k8s.io/v1"


def fields(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield all fields below a schema, as paths such as `storage.data.size`."""
    for key in ("items", "additionalProperties"):
        if isinstance(inner := schema.get(key), dict):
            yield from fields(inner, path)
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from fields(part, f"{path}{name}.")


def _listed(value: str) -> str:
    """CEL expression for the fields that an object lists."""
    return f"{value}.metadata.?annotations[?'{FIELDS}'].orValue('').split(' ')"


def policy(names: list[str]) -> dict[str, Any]:
    """Return the policy for the definitions of these names."""
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["apiextensions.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["customresourcedefinitions"],
                        "resourceNames": names,
                    }
                ]
            },
            "variables": [
                {"name": "kept", "expression": _listed("object")},
                {
                    "name": "lost",
                    "expression": f"{_listed('oldObject')}"
                    ".filter(field, field != '' && !(field in variables.kept))",
                },
            ],
            "validations": [
                {
                    "expression": "variables.lost.size() == 0",
                    "message": "objects may have fields that this older definition does not have",
                    "messageExpression": "'objects may have fields that this older definition does "
                    "not have: ' + variables.lost.join(', ')",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def binding() -> dict[str, Any]:
    """Return the binding that puts the policy into force."""
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
