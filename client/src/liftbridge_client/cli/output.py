"""Output of commands: one row type for each command, and one way to print rows in each form.

Rows go to standard output, notices to standard error. `table` is for people, `json` is one
document, `jsonl` one object a line, `schema` the JSON Schema of the document. A command that prints
rows while it runs has a `line` function, which makes the lines of its `table`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = TypeVar("Row", bound=tuple[Any, ...] | Mapping[str, Any])

WIDTH_UNBOUNDED: Final = 10_000
_SCALARS: Final[Mapping[object, Mapping[str, object]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    NoneType: {"type": "null"},
    object: {},
}


class Form(StrEnum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    SCHEMA = "schema"


def plain(value: Any) -> Any:
    """Convert a row, or a value of one, to types of JSON."""
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of a type: a NamedTuple, a scalar, a union, a sequence or a mapping of those."""
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is UnionType:
        return {"anyOf": [schema(part) for part in arguments]}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema(arguments[1])}
    hints = get_type_hints(kind)
    return {
        "title": kind.__name__,
        "type": "object",
        "properties": {name: schema(hint) for name, hint in hints.items()},
        "required": list(hints),
        "additionalProperties": False,
    }


class Shape(Generic[Row]):
    """Shape of a command's output.

    Attributes:
        row: Type of its rows, a NamedTuple; or a mapping by column, if only the run knows the
            columns, which are the same in all rows.
        is_many: Whether it prints any number of rows, or exactly one.
        line: For rows printed while the command runs: a row as a line for people.
    """

    def __init__(
        self, row: type[Row], *, is_many: bool = False, line: Callable[[Row], str] | None = None
    ) -> None:
        self.row = row
        self.is_many = is_many
        self.line = line

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the document that `-o json` prints."""
        item = schema(self.row)
        document = {"type": "array", "items": item} if self.is_many else item
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


class Printer(Generic[Row]):
    """Prints the rows of one run; used with `with`, which ends the document."""

    def __init__(self, shape: Shape[Row], form: Form) -> None:
        self._shape = shape
        self._form = form
        self._count = 0
        self._kept: list[Row] = []

    def row(self, row: Row) -> None:
        """Print a row, or keep it until the end if the form needs all rows."""
        first = self._count == 0
        self._count += 1
        write = sys.stdout.write
        match self._form:
            case Form.JSONL:
                write(json.dumps(plain(row), ensure_ascii=False) + "\n")
            case Form.JSON if self._shape.is_many:
                write(("[\n" if first else ",\n") + json.dumps(plain(row), ensure_ascii=False))
            case Form.JSON:
                write(json.dumps(plain(row), ensure_ascii=False, indent=2) + "\n")
            case _ if self._shape.line is not None:
                write(self._shape.line(row) + "\n")
            case _:
                self._kept.append(row)

    def text(self, data: bytes) -> None:
        """Print bytes as they are, for a user's own format."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        """Flush the output."""
        sys.stdout.flush()

    def end(self) -> None:
        """End the document."""
        if self._form is Form.JSON and self._shape.is_many:
            sys.stdout.write("\n]\n" if self._count else "[]\n")
        elif self._form is Form.TABLE and self._shape.line is None:
            self._table()
        sys.stdout.flush()

    def _hints(self) -> dict[str, Any]:
        """Return the columns and their types."""
        first = self._kept[0] if self._kept else None
        if isinstance(first, Mapping):
            return {name: type(value) for name, value in first.items()}
        return {} if get_origin(self._shape.row) is Mapping else get_type_hints(self._shape.row)

    def _table(self) -> None:
        hints = self._hints()
        if not self._shape.is_many:
            if not self._kept:
                return
            table = Table(box=None, show_header=False, pad_edge=False)
            for name, value in zip(hints, self._kept[0], strict=True):
                table.add_row(Text(_title(name), style="bold"), Text(_cell(value)))
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for name, hint in hints.items():
                is_number = hint in (int, float)
                table.add_column(_title(name), justify="right" if is_number else "left")
            for row in self._kept:
                values = row.values() if isinstance(row, Mapping) else row
                table.add_row(*(Text(_cell(value)) for value in values))
        self._kept = []
        stdout_console().print(table)


def stdout_console() -> Console:
    """Console for data; truncates only on a terminal."""
    is_terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if is_terminal else WIDTH_UNBOUNDED, soft_wrap=True)


def stderr_console() -> Console:
    """Console for notices; wraps only on a terminal."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else WIDTH_UNBOUNDED)


def say(text: str) -> None:
    """Print a notice: one line on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _title(name: str) -> str:
    return name.replace("_", " ").upper()


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_cell(part)}" for name, part in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(_cell(part) for part in value) or "-"
    return str(value) or "-"
