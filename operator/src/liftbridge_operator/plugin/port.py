"""The API server as the plugin needs it; its errors are those of `kube.errors`."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from secrets import SystemRandom
from typing import Any, Final, Protocol

from liftbridge_operator.kube.client import Bounds, KubeClient, path_of
from liftbridge_operator.kube.kinds import PODS, Kind
from liftbridge_operator.kube.port import Listing, Object, Preconditions
from liftbridge_operator.kube.user import connect_as_user

COMMAND: Final = "kubectl-liftbridge"
IN_FLIGHT_MAX: Final = 8
ATTEMPTS_MAX: Final = 3
REQUEST_S: Final = 20.0
LOG_BYTES_MAX: Final = 16 << 20
"""What the API server sends of one log at most; `lines_max` ends nearly all before."""


class Access(Protocol):
    """What the plugin asks for; see `kube.port` for promises and errors."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read one object."""
        ...

    async def list_all(self, kind: Kind, namespace: str, *, selector: str = "") -> Listing:
        """Read all objects of a kind."""
        ...

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        changes: Mapping[str, Any],
        *,
        preconditions: Preconditions,
    ) -> Object:
        """Change parts of the object that is meant."""
        ...

    async def log(
        self, namespace: str, pod: str, container: str, *, is_former: bool, lines_max: int
    ) -> bytes:
        """The last lines of a container's log, or of that of the container before it."""
        ...

    async def server_version(self) -> Object:
        """Which version the API server is of."""
        ...


@dataclass(frozen=True, slots=True)
class Where:
    """Which API server is meant, as kubectl takes it.

    Attributes:
        kubeconfig: Path; empty for what kubectl would take.
        context: Name; empty for the current one.
        namespace: Empty for that of the context.
        request_s: Bound of one request.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    request_s: float = REQUEST_S


@dataclass(frozen=True, slots=True)
class Reached:
    """An API server that can be asked, and the namespace that is meant."""

    access: Access
    namespace: str


Reach = Callable[[Where], AbstractAsyncContextManager[Reached]]


class UserAccess(KubeClient):
    """`Access` with the credentials of a person."""

    async def log(
        self, namespace: str, pod: str, container: str, *, is_former: bool, lines_max: int
    ) -> bytes:
        """As the port."""
        query = [
            ("container", container),
            ("tailLines", str(lines_max)),
            ("limitBytes", str(LOG_BYTES_MAX)),
            ("timestamps", "true"),
            ("previous", "true" if is_former else "false"),
        ]
        return await self.read_raw(f"{path_of(PODS, namespace, pod)}/log", query)

    async def server_version(self) -> Object:
        """As the port."""
        return await self.read_object("/version")


@asynccontextmanager
async def reach(where: Where) -> AsyncIterator[Reached]:
    """The API server of a kubeconfig.

    Raises:
        UnavailableError: There is no kubeconfig that could be used.
    """
    async with connect_as_user(
        kubeconfig=where.kubeconfig,
        context=where.context,
        agent=COMMAND,
        in_flight_max=IN_FLIGHT_MAX,
    ) as connection:
        bounds = Bounds(
            request_s=where.request_s, attempts_max=ATTEMPTS_MAX, in_flight_max=IN_FLIGHT_MAX
        )
        access = UserAccess(
            connection.api, fence=None, rng=SystemRandom(), bounds=bounds, manager=COMMAND
        )
        yield Reached(access, where.namespace or connection.namespace)
