"""Kinds of which a write has just hung, so that a pass waits for one of them and no more.

An admission webhook that hangs takes as long for each write as one may take. A pass that waited for
all of them would be cut off before it could tell of any.
"""

from liftbridge_operator.kube.errors import UnansweredError


class Silence:
    """What hung, by namespace and kind, and until when no further write of it is sent.

    Entries are few: each cost one of the requests in flight as long as a write may hang, and is
    dropped with the next one after its time.
    """

    def __init__(self, seconds: float) -> None:
        """Know of nothing yet.

        Args:
            seconds: How long writes are held back.
        """
        self._seconds = seconds
        self._until: dict[str, tuple[float, str]] = {}

    def check(self, what: str, now_s: float) -> None:
        """Let a write be sent.

        Raises:
            UnansweredError: One of its kind has just hung.
        """
        until_s, why = self._until.get(what, (now_s, ""))
        if now_s < until_s:
            raise UnansweredError(f"not sent, since another one hung: {why}", is_sent=False)

    def note(self, what: str, why: str, now_s: float) -> None:
        """A write of this kind hung."""
        left = {key: one for key, one in self._until.items() if now_s < one[0]}
        self._until = left | {what: (now_s + self._seconds, why)}


def written(path: str, subject: str) -> str:
    """Namespace, kind and subresource that a write is of, as one text.

    Args:
        path: Of the request.
        subject: Address of the object.
    """
    kind, _, _ = subject.rpartition("/")
    return kind + path[len(subject) :]
