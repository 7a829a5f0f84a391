"""Sources without some guards, imported in the place of the real ones.

Nothing is copied or written: a finder compiles the changed text of a module when it is imported.
`install` must therefore come before the first import of the broker.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import PurePosixPath
from types import CodeType, ModuleType

from liftbridge_testkit.guards.listing import MARK, Guard, GuardError
from liftbridge_testkit.repository import ROOT

REACHED = "__guard_reached__"
"""Name in `builtins` that instrumented sources call with a guard's name and a truth."""


def without(source: str, guards: Iterable[Guard]) -> str:
    """Return the source without `guards`, which are all of this file.

    Raises:
        GuardError: A mark is missing, or its line has not exactly once what is to go.
    """
    return _changed(source, guards, lambda guard: guard.new)


def instrumented(source: str, guards: Iterable[Guard]) -> tuple[str, list[Guard]]:
    """The source that reports each guard at work, and the guards for which that is not possible.

    A condition is at work when removing it changes its truth; anything else, whenever it runs.
    """
    dumb: list[Guard] = []
    for guard in guards:
        try:
            changed = _changed(source, [guard], _telling)
            compile(changed, guard.file, "exec", dont_inherit=True)
        except (SyntaxError, GuardError):  # half an expression, or one that two guards share
            dumb.append(guard)
        else:
            source = changed
    return source, dumb


def _telling(guard: Guard) -> str:
    """Return the text that does the same as the guard, and reports it."""
    old, new = guard.old.strip(), guard.new.strip()
    call = f"{REACHED}({guard.name!r}, "
    if old.startswith("if ") and old.endswith(":") and new in {"if False:", "if True:"}:
        return f"if {_condition(call, old[3:-1], new == 'if True:')}:"
    if new in {"True", "False"}:
        return _condition(call, old, new == "True")
    word, _, rest = old.partition(" ")
    if not new and word in {"and", "or", "if"} and _is_expression(rest):
        return f" {word} {_condition(call, rest, word != 'or')} "
    if _is_expression(old):
        return f"({call}True), ({old}))[1]"
    # A statement of its own; `pass` keeps anything else from being compiled as something new.
    return f"pass; {call}True); {old}"


def _condition(call: str, old: str, removed_as: bool) -> str:
    """Return the condition `old`, telling when it differs from what it is without the guard."""
    return f"(not {call}not ({old})))" if removed_as else f"{call}({old}))"


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _changed(source: str, guards: Iterable[Guard], text_of: Callable[[Guard], str]) -> str:
    lines = source.split("\n")
    places: dict[str, int] = {}
    for number, line in enumerate(lines):
        match = MARK.search(line)
        for name in match[1].split() if match else ():
            places[name] = number
    for guard in guards:
        if guard.name not in places:
            raise GuardError(f"{guard.file} has no mark of {guard.name}")
        line = lines[places[guard.name]]
        match = MARK.search(line)
        code, mark = (line[: match.start()], line[match.start() :]) if match else (line, "")
        if code.count(guard.old) != 1:
            raise GuardError(f"{guard.name}: not exactly once in its line: {guard.old!r}")
        lines[places[guard.name]] = code.replace(guard.old, text_of(guard)) + mark
    return "\n".join(lines)


class _Loader(SourceFileLoader):
    """Compiles a given text instead of the file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        code: CodeType = compile(self._text, self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[str, tuple[str, str]]) -> None:
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in self._texts:
            return None
        file, text = self._texts[fullname]
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, text))


def by_file(guards: Iterable[Guard]) -> dict[str, list[Guard]]:
    """Return the guards by the file they are in."""
    files: dict[str, list[Guard]] = {}
    for guard in guards:
        files.setdefault(guard.file, []).append(guard)
    return files


def install(texts: Mapping[str, str]) -> None:
    """Have these texts imported in the place of the files of the broker named as keys."""
    modules: dict[str, tuple[str, str]] = {}
    for file, text in texts.items():
        parts = PurePosixPath(file).with_suffix("").parts
        name = ".".join(parts[parts.index("src") + 1 :])
        assert name not in sys.modules, f"{name} is imported already"
        modules[name] = str(ROOT / file), text
    sys.meta_path.insert(0, _Finder(modules))
