"""The plugin's interface to the API server; its errors are those of `kube.errors`."""

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
"""Most bytes of one log that the API server sends; `lines_max` usually stops earlier."""


class Access(Protocol):
    """Calls that the plugin makes; see `kube.port` for guarantees and errors."""

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
        """Patch an object if the preconditions hold."""
        ...

    async def log(
        self, namespace: str, pod: str, container: str, *, is_former: bool, lines_max: int
    ) -> bytes:
        """Return the last lines of a container's log, or of its predecessor's."""
        ...

    async def server_version(self) -> Object:
        """Return the version of the API server."""
        ...


@dataclass(frozen=True, slots=True)
class Where:
    """Selection of the API server, as in kubectl.

    Attributes:
        kubeconfig: Path; empty for kubectl's default.
        context: Name; empty for the current one.
        namespace: Name; empty for that of the context.
        request_s: Time limit of one request.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    request_s: float = REQUEST_S


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to an API server, and the selected namespace."""

    access: Access
    namespace: str


Reach = Callable[[Where], AbstractAsyncContextManager[Reached]]


class UserAccess(KubeClient):
    """`Access` with the credentials of a user."""

    async def log(
        self, namespace: str, pod: str, container: str, *, is_former: bool, lines_max: int
    ) -> bytes:
        """See the port."""
        query = [
            ("container", container),
            ("tailLines", str(lines_max)),
            ("limitBytes", str(LOG_BYTES_MAX)),
            ("timestamps", "true"),
            ("previous", "true" if is_former else "false"),
        ]
        return await self.read_raw(f"{path_of(PODS, namespace, pod)}/log", query)

    async def server_version(self) -> Object:
        """See the port."""
        return await self.read_object("/version")


@asynccontextmanager
async def reach(where: Where) -> AsyncIterator[Reached]:
    """Connect to the API server of a kubeconfig.

    Raises:
        UnavailableError: There is no usable kubeconfig.
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
