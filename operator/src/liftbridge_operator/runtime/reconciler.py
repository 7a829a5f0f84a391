"""What the runtime asks of a reconciler: one pass for one key.

    class ClusterReconciler:
        async def reconcile(self, key: Key) -> RequeueAfter | None: ...

The queue runs at most one pass for a key at a time, and several keys side by side. A pass reads
what it needs, does at most one thing, writes the status, and ends; it never waits for something to
become true, but asks to come again.
"""

from typing import NamedTuple, Protocol

from liftbridge_operator.kube.kinds import Kind


class Key(NamedTuple):
    """A resource that somebody should look at.

    Attributes:
        kind: `kinds.CLUSTERS`, `kinds.STREAMS` or `kinds.PIPELINES`.
        namespace: Where it lies.
        name: Which it is.
    """

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        """For people: `streams.liftbridge.io default/orders`."""
        return f"{self.kind.qualified} {self.namespace}/{self.name}"


class RequeueAfter(NamedTuple):
    """Request for another pass, although nothing may happen until then.

    Attributes:
        seconds: From the end of this pass; 0 for at once.
    """

    seconds: float


class RefusedError(Exception):
    """Something a pass needs said no, or said nothing: expected, told in one line, tried again.

    Reconcilers raise it, or one of its kind, for what `KubeError` does not cover.
    """


class Reconciler(Protocol):
    """One pass for one key."""

    async def reconcile(self, key: Key) -> RequeueAfter | None:
        """Look at the resource and bring it one step closer to what is wanted.

        Returns:
            When to come again; None to wait for an event or the resync.

        Raises:
            KubeError: Expected; another pass follows after a back-off that grows, with one line in
                the log. `FencedError` ends the pass, and none follows.
            RefusedError: Expected in the same way.
            Exception: A mistake in the code; logged with its traceback, another pass follows
                as above. The process lives on: one broken resource must not stop all others.
        """


class Requests(Protocol):
    """Asks for passes from outside the watches, such as when brokers answer again."""

    def request(self, key: Key, after_s: float = 0.0) -> None:
        """Have a pass for a key within this time; sooner ones are not put off.

        Args:
            key: Which.
            after_s: Seconds from now.
        """
