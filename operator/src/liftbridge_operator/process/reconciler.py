"""Interface between the process and a reconciler: one pass for one key.

    class ClusterReconciler:
        async def reconcile(self, key: Key) -> RequeueAfter | None: ...

The queue runs at most one pass for a key at a time, and several keys concurrently. A pass reads its
inputs, does at most one action, writes the status, and ends; it never waits for a condition, but
requests another pass.
"""

from typing import NamedTuple, Protocol

from liftbridge_operator.kube.kinds import Kind


class Key(NamedTuple):
    """Key of a resource to reconcile.

    Attributes:
        kind: `kinds.CLUSTERS`, `kinds.STREAMS`, `kinds.PIPELINES` or `kinds.USERS`.
        namespace: Its namespace.
        name: Its name.
    """

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        """Format for display: `streams.liftbridge.io default/orders`."""
        return f"{self.kind.qualified} {self.namespace}/{self.name}"


class RequeueAfter(NamedTuple):
    """Request for another pass, even without an event.

    Attributes:
        seconds: Time from the end of this pass; 0 for at once.
    """

    seconds: float


class RefusedError(Exception):
    """A dependency of a pass refused or did not answer: expected, logged in one line, retried.

    Reconcilers raise it, or a subclass, for failures that `KubeError` does not cover.
    """


class Reconciler(Protocol):
    """One pass for one key."""

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """Observe the resource and bring it one step closer to its desired state.

        Returns:
            Time of the next pass; None to wait for an event or the resync.

        Raises:
            KubeError: Expected; another pass follows after a back-off that grows, with one line in
                the log. `FencedError` ends the pass, and none follows.
            RefusedError: Expected in the same way.
            Exception: A bug; logged with its traceback, another pass follows as above. The process
                continues: one broken resource must not stop all others.
        """


class Requests(Protocol):
    """Requests passes from outside the watches, such as when brokers answer again."""

    def request(self, key: Key, after_s: float = 0.0) -> None:
        """Request a pass for a key within this time; an earlier request stays.

        Args:
            key: The resource.
            after_s: Seconds from now.
        """
