"""Settings of the process: one table, read from flags and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

ENVIRONMENT_PREFIX: Final = "LIFTBRIDGE_OPERATOR_"

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        name: Field of `Settings`; the flag has dashes, the variable capitals.
        kind: `text`, `list`, `choice`, `integer`, `seconds` or `address`.
        default: Value when none is given.
        doc: One sentence for `--help` and the reference.
        choices: Values of a choice.
        minimum: Smallest number.
        maximum: Largest number.
    """

    name: str
    kind: str
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 2**31 - 1

    @property
    def flag(self) -> str:
        """Option of the command."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()


SETTINGS: Final = (
    Setting(
        "watch_namespaces",
        "list",
        (),
        "Namespaces whose resources are reconciled, separated by commas; all when empty.",
    ),
    Setting(
        "listen",
        "address",
        "0.0.0.0:8080",
        "Address of probes and metrics; nothing there is secret or changes anything.",
    ),
    Setting("log_format", "choice", "json", "Form of the log.", choices=("json", "console")),
    Setting(
        "log_level",
        "choice",
        "info",
        "Lowest level that is written.",
        choices=("debug", "info", "warning", "error"),
    ),
    Setting(
        "broker_image",
        "text",
        "liftbridge-broker",
        "Image of brokers without a tag; `spec.version` of a cluster is the tag unless "
        "`spec.image` names another image.",
    ),
    Setting(
        "spark_image",
        "text",
        "liftbridge-spark",
        "Image of pipelines without a tag; the version of the operator is the tag unless "
        "`spec.image` names another image.",
    ),
    Setting(
        "executor_role",
        "text",
        "",
        "ClusterRole that drivers with executors get in their namespace; without it there are "
        "none.",
    ),
    Setting(
        "pod_labels",
        "list",
        ("app.kubernetes.io/name=liftbridge-operator",),
        "Labels of the operator's own pods, separated by commas, by which brokers let it in.",
    ),
    Setting("lease_name", "text", "liftbridge-operator", "Name of the Lease that elects a leader."),
    Setting(
        "lease_namespace",
        "text",
        "",
        "Namespace of that Lease; that of the operator's own pod, else `default`, when empty.",
    ),
    Setting(
        "lease_duration",
        "seconds",
        15.0,
        "Another process takes over after this time without a renewal.",
        minimum=3,
        maximum=600,
    ),
    Setting(
        "lease_renew",
        "seconds",
        10.0,
        "The leader ends after this time without a renewal; less than `lease_duration`.",
        minimum=2,
        maximum=600,
    ),
    Setting(
        "lease_retry",
        "seconds",
        2.0,
        "Time between two renewals, or two looks at the Lease; less than `lease_renew`.",
        minimum=0.1,
        maximum=60,
    ),
    Setting(
        "cluster_workers",
        "integer",
        4,
        "Passes of LiftbridgeClusters at the same time.",
        minimum=1,
        maximum=64,
    ),
    Setting(
        "stream_workers",
        "integer",
        16,
        "Passes of Streams at the same time.",
        minimum=1,
        maximum=256,
    ),
    Setting(
        "resync",
        "seconds",
        600.0,
        "All resources are listed and looked at after this time, whatever happened to them.",
        minimum=10,
        maximum=86_400,
    ),
    Setting(
        "grace",
        "seconds",
        20.0,
        "Passes that have begun are given this time to end when the operator is stopped.",
        maximum=600,
    ),
)


class SettingsError(Exception):
    """Settings conflict, or one is malformed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process; `SETTINGS` describes them."""

    watch_namespaces: tuple[str, ...]
    listen: str
    log_format: str
    log_level: str
    broker_image: str
    spark_image: str
    executor_role: str
    pod_labels: tuple[str, ...]
    lease_name: str
    lease_namespace: str
    lease_duration: float
    lease_renew: float
    lease_retry: float
    cluster_workers: int
    stream_workers: int
    resync: float
    grace: float

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of probes and metrics."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the operator's own pods."""
        return {
            name: value
            for name, _, value in (pod_label.partition("=") for pod_label in self.pod_labels)
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Build settings from typed values by name, with defaults for missing ones.

        Raises:
            SettingsError: The settings contradict each other, or an address or label is malformed.
        """
        given = {row.name: values.get(row.name, row.default) for row in SETTINGS}
        assert [each.name for each in fields(cls)] == list(given), "a setting is missing"
        found = cls(**given)
        if not found.lease_retry < found.lease_renew < found.lease_duration:
            raise SettingsError("lease-retry, lease-renew and lease-duration must rise")
        host, colon, port = found.listen.rpartition(":")
        if not (colon and port.isdecimal() and int(port) < 65_536) or not host:
            raise SettingsError(f"listen: {found.listen!r} is not host:port")
        for label in found.pod_labels:
            if not all(label.partition("=")):
                raise SettingsError(f"pod-labels: {label!r} is not name=value")
        return found


def own_namespace(path: Path = _NAMESPACE_FILE) -> str:
    """Return the namespace of the operator's own pod; `default` outside of a cluster."""
    try:
        return path.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
