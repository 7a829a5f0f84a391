"""Reads the authorization of the original, a Casbin model and its policy in CSV, as access rules.

It is a strict reader of the models in use, lists of rights, perhaps with roles and `keyMatch`, and
not an interpreter: a matcher of Casbin is an expression of its own language, whose evaluation for
each call would take longer than the call, and whose mistakes would let callers in. Whatever this
reader does not know is refused with the line, never ignored.

Names of actions are those of the RPCs that the original checks, and of the further ones here.
"""

import csv
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from liftbridge_broker.access.rule_set import RULES_MAX
from liftbridge_broker.access.rules import (
    AccessRule,
    NameMatch,
    Operation,
    ResourceKind,
    RuleKey,
    check_rule,
    super_rules,
)
from liftbridge_broker.errors import InvalidRequestError
from liftbridge_broker.model.steps import finish

FILE_BYTES_MAX: Final = 256 << 10
"""Largest model or policy: its lines are read in one turn."""

STEP_RULES: Final = 100
"""Rules made in a step."""

MATCHER_LENGTH_MAX: Final = 1_024

_METADATA: Final = "*"
"""Object for which the original checks FetchMetadata."""


class _Action(NamedTuple):
    """What an action stands for: an operation on the object, and more on other resources."""

    operation: Operation
    kind: ResourceKind = ResourceKind.STREAM
    also: tuple[tuple[Operation, ResourceKind, NameMatch, str], ...] = ()


_READ: Final = _Action(
    # The original lets everybody join any group.
    Operation.READ,
    also=((Operation.JOIN, ResourceKind.GROUP, NameMatch.PREFIX, ""),),
)
_PUBLISH: Final = _Action(
    Operation.PUBLISH,
    also=((Operation.PUBLISH, ResourceKind.SUBJECT, NameMatch.PATTERN, "_INBOX.>"),),
)
_CREATE: Final = _Action(
    # The original does not check subjects.
    Operation.CREATE,
    also=((Operation.ATTACH, ResourceKind.SUBJECT, NameMatch.PATTERN, ">"),),
)
_ACTIONS: Final[Mapping[str, _Action]] = {
    "CreateStream": _CREATE,
    "DeleteStream": _Action(Operation.DELETE),
    "PauseStream": _Action(Operation.PAUSE),
    "SetStreamReadonly": _Action(Operation.SET_READONLY),
    "Subscribe": _READ,
    "FetchMetadata": _Action(Operation.DESCRIBE),
    "FetchPartitionMetadata": _Action(Operation.DESCRIBE),
    "Publish": _PUBLISH,
    "PublishAsync": _PUBLISH,
    "PublishToSubject": _Action(Operation.PUBLISH, ResourceKind.SUBJECT),
    "SetCursor": _Action(Operation.SET, ResourceKind.CURSOR),
    "FetchCursor": _Action(Operation.READ, ResourceKind.CURSOR),
    "JoinConsumerGroup": _Action(Operation.JOIN, ResourceKind.GROUP),
    "AlterStream": _Action(Operation.ALTER),
    "InitPublisher": _PUBLISH,
    "PartitionBounds": _Action(Operation.DESCRIBE),
    "FetchBatches": _READ,
    "PublishBatch": _PUBLISH,
}
_EFFECTS: Final[Mapping[str, bool]] = {
    "some(where(p.eft==allow))": False,
    "some(where(p.eft==allow))&&!some(where(p.eft==deny))": True,
}
"""Policy effects that allow nothing unless a line does -> whether lines may deny."""


class _Model(NamedTuple):
    """A model.

    Attributes:
        columns: Names of the columns of a policy line.
        can_deny: Whether lines may deny.
        has_roles: Whether `g` lines give roles.
        compared: How subject, object and action are compared: `==`, `g`, `keyMatch`, `regexMatch`,
            or `*` for `==` with a wildcard.
        places: Columns with which they are compared.
        super_users: Subjects that the matcher always lets through.
    """

    columns: tuple[str, ...]
    can_deny: bool
    has_roles: bool
    compared: tuple[str, ...]
    places: tuple[int, ...]
    super_users: tuple[str, ...]


def read_policy(model: str, policy: str) -> tuple[AccessRule, ...]:
    """Return the rules of a model and a policy; see `read_policy_in_steps`."""
    return finish(read_policy_in_steps(model, policy))


def read_policy_in_steps(model: str, policy: str) -> Generator[None, None, tuple[AccessRule, ...]]:
    """Return the rules that allow what a model and a policy allow in the original.

    Lines that can match no call, such as a stream named `a b`, are left out.

    Raises:
        InvalidRequestError: A file is too large or uses what this reader does not know; names the
            place, the text and the remedy.
    """
    for name, text in (("model", model), ("policy", policy)):
        if len(text.encode()) > FILE_BYTES_MAX:
            raise InvalidRequestError(f"{name}: larger than {FILE_BYTES_MAX} bytes")
    form = _read_model(model)
    found: dict[RuleKey, AccessRule] = {}
    for number, rule in enumerate(_rules(form, policy), 1):
        before = found.get(rule.key, rule)
        found[rule.key] = rule._replace(operations=before.operations | rule.operations)
        if len(found) > RULES_MAX:
            raise InvalidRequestError(
                f"policy: more than {RULES_MAX} access rules; use keyMatch prefixes"
            )
        if number % STEP_RULES == 0:
            yield
    return tuple(found.values())


# -- the model ----------------------------------------------------------------------------------


def _read_model(text: str) -> _Model:
    entries = dict(_entries(text))
    request = _definition(entries, "request_definition", "r")
    columns = _definition(entries, "policy_definition", "p")
    if len(request) != 3 or len(columns) not in (3, 4) or columns[3:] not in ((), ("eft",)):
        raise _unknown(
            "model", "request_definition and policy_definition", "need subject, object and action"
        )
    effect = "".join(entries.get(("policy_effect", "e"), "").split())
    if effect not in _EFFECTS:
        raise _unknown("model [policy_effect]", effect, "must allow only what some line allows")
    roles = "".join(entries.get(("role_definition", "g"), "").split())
    if roles not in ("", "_,_"):
        raise _unknown("model [role_definition]", roles, "must be g = _, _")
    known = {"request_definition", "policy_definition", "role_definition"}
    known |= {"policy_effect", "matchers"}
    for section, key in entries:
        if section not in known or key not in "rpgem" or len(key) != 1:
            raise _unknown(f"model [{section}]", key, "only r, p, g, e and m may be defined")
    matcher = "".join(entries.get(("matchers", "m"), "").split())
    compared, places, users = _read_matcher(matcher, request, columns[:3])
    if "g" in compared and not roles:
        raise _unknown("model [matchers]", "g", "needs a role_definition")
    return _Model(columns, _EFFECTS[effect], bool(roles), compared, places, users)


def _entries(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif line:
            key, equals, value = line.partition("=")
            if not equals:
                raise _unknown(f"model, line {number}", line, "must be KEY = VALUE or [SECTION]")
            yield (section, key.strip()), value.strip()


def _definition(entries: Mapping[tuple[str, str], str], section: str, key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in entries.get((section, key), "").split(","))


def _read_matcher(
    text: str, request: Sequence[str], columns: Sequence[str]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Return how each part of a request is compared, with which column, and the super-users.

    A matcher is one conjunction with a term for each part, and perhaps more alternatives that
    compare the subject with a name.
    """
    if len(text) > MATCHER_LENGTH_MAX:
        raise _unknown("model [matchers]", text[:80], f"longer than {MATCHER_LENGTH_MAX}")
    terms = dict(_terms(request, columns))
    users: list[str] = []
    found: dict[int, tuple[str, int]] = {}
    name_of = f"r.{request[0]}=="
    for alternative in _split(text, "||"):
        name = alternative.removeprefix(name_of)
        if name != alternative and name[:1] in ("'", '"'):
            users.append(name.strip("\"'"))
            continue
        if found:
            raise _unknown("model [matchers]", alternative, "more than one list of conditions")
        for term in _split(alternative, "&&"):
            if term not in terms or terms[term][0] in found:
                raise _unknown(
                    "model [matchers]",
                    term,
                    "known are ==, g, keyMatch, regexMatch of actions, and == with || p == '*'; "
                    "write the policy with these",
                )
            part, how, place = terms[term]
            found[part] = how, place
    if sorted(found) != [0, 1, 2]:
        raise _unknown("model [matchers]", text, "must compare subject, object and action")
    return (
        tuple(found[part][0] for part in range(3)),
        tuple(found[part][1] for part in range(3)),
        tuple(users),
    )


def _terms(
    request: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[str, tuple[int, str, int]]]:
    """Yield every term that this reader knows: its text, the part, how, and the column."""
    for part, wanted in enumerate(request):
        for place, column in enumerate(columns):
            r, p = f"r.{wanted}", f"p.{column}"
            yield f"{r}=={p}", (part, "==", place)
            yield f"keyMatch({r},{p})", (part, "keyMatch", place)
            for star in ('"*"', "'*'"):
                yield f"({r}=={p}||{p}=={star})", (part, "*", place)
            if part == 0:
                yield f"g({r},{p})", (part, "g", place)
            if part == 2:
                yield f"regexMatch({r},{p})", (part, "regexMatch", place)


def _split(text: str, operator: str) -> Iterator[str]:
    """Yield the operands of an operator outside of parentheses."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and text.startswith(operator, position):
            yield text[start:position]
            start = position + len(operator)
    yield text[start:]


# -- the policy ---------------------------------------------------------------------------------


def _rules(model: _Model, policy: str) -> Iterator[AccessRule]:
    lines: list[tuple[int, list[str]]] = []
    members: dict[str, list[str]] = {}
    for number, raw in enumerate(policy.splitlines(), 1):
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        try:
            kind, *values = map(str.strip, next(csv.reader([raw], skipinitialspace=True)))
        except csv.Error as error:
            raise _unknown(f"policy, line {number}", raw, str(error)) from error
        if kind == "p" and len(values) in (3, 4, len(model.columns)):
            lines.append((number, values))
        elif kind == "g" and len(values) == 2 and model.has_roles:
            members.setdefault(values[1], []).append(values[0])
        else:
            raise _unknown(f"policy, line {number}", raw, "must be p with the columns, or g")
    for user in model.super_users:
        yield from super_rules(user)
    for number, values in lines:
        is_denied = values[3:] == ["deny"]
        if values[3:] not in ([], ["allow"], ["deny"]):
            raise _unknown(f"policy, line {number}", values[3], "must be allow or deny")
        if not is_denied or model.can_deny:
            yield from _rules_of(model, number, values, members, is_denied=is_denied)


def _rules_of(
    model: _Model,
    number: int,
    values: Sequence[str],
    members: Mapping[str, Sequence[str]],
    *,
    is_denied: bool,
) -> Iterator[AccessRule]:
    where = f"policy, line {number}"
    subject, obj, action = (values[place] for place in model.places)
    how_subject, how_object, how_action = model.compared
    principals = _principals(where, how_subject, subject, members)
    match, name = _matched(how_object, obj)
    for action_name in _actions(where, how_action, action):
        meant = _ACTIONS[action_name]
        named = _resources(where, action_name, meant, match, name, is_denied=is_denied)
        for operation, kind, own_match, own_name in named:
            for principal in principals:
                rule = AccessRule(
                    principal=principal,
                    is_group=False,
                    kind=kind,
                    match=own_match,
                    name=own_name,
                    is_denied=is_denied,
                    operations=int(operation),
                )
                try:
                    check_rule(rule)
                except InvalidRequestError:
                    continue  # no call can name it
                yield rule


def _resources(
    where: str, action: str, meant: _Action, match: NameMatch, name: str, *, is_denied: bool
) -> Iterator[tuple[Operation, ResourceKind, NameMatch, str]]:
    operation, kind, also = meant
    if action == "FetchMetadata":
        # Checked for the object `*` alone, and shows all streams.
        if name == _METADATA or (match is NameMatch.PREFIX and not name):
            yield operation, kind, NameMatch.PREFIX, ""
        return
    if kind is ResourceKind.CURSOR and match is NameMatch.EXACT:
        match, name = NameMatch.PREFIX, f"{name}/"
    if kind is ResourceKind.SUBJECT and match is NameMatch.PREFIX:
        if name and not name.endswith("."):
            raise _unknown(where, f"{name}*", "a prefix of subjects must end in '.'")
        match, name = NameMatch.PATTERN, f"{name}>"
    yield operation, kind, match, name
    if not is_denied:
        yield from also


def _principals(
    where: str, how: str, subject: str, members: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    """Return the names of principals that a subject stands for, in roles of roles, too."""
    if how in ("keyMatch", "*"):
        match, name = _matched(how, subject)
        return (f"{name}*" if match is NameMatch.PREFIX else name,)
    found = dict.fromkeys((subject,))
    waiting = [subject] if how == "g" else []
    while waiting:
        for member in members.get(waiting.pop(), ()):
            if member not in found:
                found[member] = None
                waiting.append(member)
    for name in found:
        if not name or name.endswith("*"):
            raise _unknown(where, name, "is no name of a client; use keyMatch for a prefix")
    return tuple(found)


def _matched(how: str, text: str) -> tuple[NameMatch, str]:
    """Return how a rule names what a column matches; `keyMatch` ignores all behind a `*`."""
    if how == "keyMatch" and "*" in text:
        return NameMatch.PREFIX, text.partition("*")[0]
    if how == "*" and text == "*":
        return NameMatch.PREFIX, ""
    return NameMatch.EXACT, text


def _actions(where: str, how: str, text: str) -> Sequence[str]:
    """Return the actions that a column matches."""
    if how == "regexMatch":
        return [name for one in text.split("|") for name in _matching(where, one)]
    match, name = _matched(how, text)
    if match is NameMatch.PREFIX:
        return [action for action in _ACTIONS if action.startswith(name)]
    if name not in _ACTIONS:
        raise _unknown(where, name, f"must be one of {', '.join(_ACTIONS)}")
    return [name]


def _matching(where: str, expression: str) -> Sequence[str]:
    """Return the actions that one alternative matches; it is a word, perhaps with anchors."""
    word = expression.strip("()^$")
    if word == ".*":
        return list(_ACTIONS)
    if not word.isalpha():
        raise _unknown(where, expression, "a regular expression must be words separated by |")
    begins, ends = "^" in expression, "$" in expression
    return [
        action
        for action in _ACTIONS
        if word in action
        and (not begins or action.startswith(word))
        and (not ends or action.endswith(word))
    ]


def _unknown(where: str, text: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {text[:120]!r}: {remedy}")
