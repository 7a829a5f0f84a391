"""Connect to the API server as a user: by a kubeconfig, its contexts, and their namespaces.

The order is that of kubectl: `--kubeconfig`, else `KUBECONFIG` (several files separated by colons),
else `~/.kube/config`, and in a pod without any of them its ServiceAccount. Nothing is written back.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from liftbridge_operator.kube.errors import UnavailableError

DEFAULT_NAMESPACE: Final = "default"
POD_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_FILE: Final = "~/.kube/config"

# Errors of the library for files that are no kubeconfig.
_NO_KUBECONFIG: Final = (
    kube_config.ConfigException,
    OSError,
    yaml.YAMLError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to an API server.

    Attributes:
        api: Connections of the library, open as long as the context.
        namespace: Of the context; `default` when it names none.
    """

    api: ApiClient
    namespace: str


@asynccontextmanager
async def connect_as_user(
    *, kubeconfig: str, context: str, agent: str, in_flight_max: int
) -> AsyncIterator[Connection]:
    """Connect to the API server of a kubeconfig.

    Args:
        kubeconfig: Path, or several separated by colons; empty for kubectl's default.
        context: Name of a context; empty for the current one.
        agent: `User-Agent` of requests.
        in_flight_max: Maximum number of concurrent connections.

    Raises:
        UnavailableError: There is no kubeconfig, it is malformed, or it lacks the context.
    """
    settings = Configuration()
    files = _files(kubeconfig, context)
    namespace = await _by_file(settings, files, context) if files else _in_pod(settings)
    settings.connection_pool_maxsize = in_flight_max
    settings.retries = None
    async with ApiClient(settings) as api:
        api.user_agent = agent
        yield Connection(api, namespace)


def _files(kubeconfig: str, context: str) -> str:
    """Return paths of the kubeconfig; empty for the ServiceAccount of a pod.

    Raises:
        UnavailableError: None of the named files exists.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG", "")
    named = files or _DEFAULT_FILE
    if any(Path(one).expanduser().exists() for one in named.split(os.pathsep) if one):
        return named
    if files or context:
        raise UnavailableError(f"no kubeconfig: {named} does not exist")
    return ""


def _in_pod(settings: Configuration) -> str:
    try:
        kube_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # no types
        return POD_NAMESPACE_FILE.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (kube_config.ConfigException, OSError) as error:
        message = f"no kubeconfig: neither --kubeconfig nor KUBECONFIG, and no {_DEFAULT_FILE}"
        raise UnavailableError(message) from error


async def _by_file(settings: Configuration, files: str, context: str) -> str:
    """Fill in the settings, and return the namespace of the context."""
    try:
        merged: Any = KubeConfigMerger(files).config  # type: ignore[no-untyped-call]  # no types
        known = [str(one["name"]) for one in merged["contexts"]]
    except _NO_KUBECONFIG as error:
        raise UnavailableError(f"{files} is not a kubeconfig: {_said(error)}") from error
    if context and context not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise UnavailableError(f"no context {context!r} in {files}; it has {listed}")
    try:
        loader: Any = KubeConfigLoader(  # type: ignore[no-untyped-call]  # no types
            config_dict=merged, config_base_path=None, active_context=context or None
        )
        namespace = loader.current_context["context"].get("namespace")
        await loader.load_and_set(settings)
    except _NO_KUBECONFIG as error:
        raise UnavailableError(f"{files} cannot be used: {_said(error)}") from error
    return str(namespace or DEFAULT_NAMESPACE)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
