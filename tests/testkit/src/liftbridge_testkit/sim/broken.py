"""The error of a broken promise."""


class BrokenInvariantError(AssertionError):
    """A broken promise.

    Attributes:
        name: Name of the check: the number of an invariant (`I5`) or the name of a checker.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
