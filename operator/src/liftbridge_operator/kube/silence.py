"""Remember kinds with a hung write, so that a pass waits for only one of them.

With a hanging admission webhook each write takes its full time-out. A pass that waited for all of
them would be cancelled before it could report any.
"""

from liftbridge_operator.kube.errors import UnansweredError


class Silence:
    """Hung writes by namespace and kind, each with the end of its pause.

    Entries are few: each one has occupied a request in flight for as long as a write may hang, and
    an expired one is dropped when the next is added.
    """

    def __init__(self, seconds: float) -> None:
        """Start without entries.

        Args:
            seconds: Time for which writes are held back.
        """
        self._seconds = seconds
        self._until: dict[str, tuple[float, str]] = {}

    def check(self, what: str, now_s: float) -> None:
        """Return if a write may be sent.

        Raises:
            UnansweredError: A write of its kind has just hung.
        """
        until_s, why = self._until.get(what, (now_s, ""))
        if now_s < until_s:
            raise UnansweredError(f"not sent, since another one hung: {why}", is_sent=False)

    def note(self, what: str, why: str, now_s: float) -> None:
        """Record a hung write."""
        left = {key: one for key, one in self._until.items() if now_s < one[0]}
        self._until = left | {what: (now_s + self._seconds, why)}


def written(path: str, subject: str) -> str:
    """Return namespace, kind and subresource of a write as one text.

    Args:
        path: Path of the request.
        subject: Path of the object.
    """
    kind, _, _ = subject.rpartition("/")
    return kind + path[len(subject) :]
