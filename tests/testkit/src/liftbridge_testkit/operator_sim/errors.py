"""Errors of a schedule, of the operator and of the judge."""


class ApiError(Exception):
    """The API server or a broker refuses, or does not answer.

    Attributes:
        code: 404, 409, 410, 422, 429 or 504.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class InvariantError(Exception):
    """The operator did something that it must never do."""
