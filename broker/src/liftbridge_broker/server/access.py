"""The access rules in force on this broker: those of the cluster, and those of a policy file.

The metadata says whether access control is on, so that all brokers agree whatever their settings
are. A broker whose settings ask for it turns it on there, and until then enforces what would be in
force: the rules there are, and rights of the super-users if nobody may change rules. No broker is
ever more open than its settings or the metadata say.
"""

from pathlib import Path
from typing import Final

from liftbridge_broker.access.casbin import FILE_BYTES_MAX, read_policy
from liftbridge_broker.access.rule_set import RuleSet
from liftbridge_broker.access.rules import super_rules
from liftbridge_broker.api.access.control import OPERATORS, AccessControl
from liftbridge_broker.config.options import AccessOptions
from liftbridge_broker.controller.callers.commands import ACCESS_LEVEL, SetAccess
from liftbridge_broker.errors import ConfigError, InvalidRequestError, LiftbridgeError
from liftbridge_broker.node.node import Node
from liftbridge_broker.ports.clock import Clock
from liftbridge_broker.ports.observe import Observer

_MODEL: Final = "tls.client.authz.model"
_POLICY: Final = "tls.client.authz.policy"


class Enforcement:
    """Keeps the rules in force up to date on both kinds of ports.

    Args:
        options: Settings.
        observer: Is notified of changes and refusals.
        clock: Time.
        has_operators: Whether callers of the operator port have identities. Without TLS, which only
            loopback may do without, whoever reaches the port is an operator, as before.

    Attributes:
        clients: Access control of the ports for clients.
        operators: That of the port for operators. There both kinds of super-users of the settings
            have every right, so that they can mend rules; a policy file does not apply, as the
            original has no such port.

    Raises:
        ConfigError: A policy file cannot be read, or uses what is not known.
    """

    def __init__(
        self, options: AccessOptions, observer: Observer, clock: Clock, *, has_operators: bool
    ) -> None:
        self.clients = AccessControl(observer, clock.now)
        self.operators = AccessControl(observer, clock.now, OPERATORS)
        self._options = options
        self._observer = observer
        self._clock = clock
        self._has_operators = has_operators
        self._node: Node | None = None
        self._is_asking = False
        self._refusal = ""
        self._shown: tuple[object, ...] = ()
        self._seeds = RuleSet(rule for name in options.super_users for rule in super_rules(name))
        self._operators = (*options.super_users, *options.admin_super_users)
        self._file_rules = self._read()
        self.renew()

    def attach(self, node: Node) -> None:
        """Follow the metadata of the node, which exists from now on."""
        self._node = node
        node.on_access = self.renew
        self.renew()

    def renew(self) -> None:
        """Put the present rules in force, and end the calls that they forbid."""
        cluster = self._cluster_rules()
        files = [] if self._file_rules is None else [self._file_rules]
        self.clients.gate.enforce([*cluster, *files])
        self.operators.gate.enforce(cluster if self._has_operators else [], self._operators)
        self.clients.on_change()
        shown = (
            self._is_on,
            self.clients.gate.is_closed,
            0 if self._file_rules is None else len(self._file_rules),
        )
        if shown != self._shown and (self._shown or self.clients.gate.is_closed):
            fields = dict(zip(("is_on", "is_enforced", "policy_rules"), shown, strict=True))
            self._observer.transition("access_control_changed", fields)
        self._shown = shown

    def reload(self) -> None:
        """Read the policy file again.

        Raises:
            ConfigError: It cannot be read or used; the former rules stay in force.
        """
        self._file_rules = self._read()
        self.renew()

    def look(self) -> None:
        """Turn access control on in the metadata, if the settings ask for it and it is off."""
        node = self._node
        if not self._options.is_enabled or self._is_on or self._is_asking or node is None:
            return
        if node.state.feature_level < ACCESS_LEVEL:
            self._report(
                f"feature level {node.state.feature_level} is in force, and access rules need "
                f"{ACCESS_LEVEL}: upgrade all brokers and raise it"
            )
            return
        self._is_asking = True
        command = SetAccess(is_on=True, super_users=self._options.super_users)
        node.propose(command, self._clock.now(), self._answered)

    def _answered(self, outcome: object) -> None:
        self._is_asking = False
        if isinstance(outcome, LiftbridgeError) and not outcome.retriable:
            self._report(outcome.text)

    def _report(self, reason: str) -> None:
        """Report once why access control is not on in the cluster."""
        if reason != self._refusal:
            self._refusal = reason
            self._observer.transition("access_control_not_on", {"reason": reason})

    @property
    def _is_on(self) -> bool:
        """Whether the metadata says that access control is on."""
        return self._node is not None and self._node.state.access.is_on

    def _cluster_rules(self) -> list[RuleSet]:
        if not (self._is_on or self._options.is_enabled):  # guard Access.setting
            return []
        rules = RuleSet() if self._node is None else self._node.state.access.rules
        return [rules if rules.has_granter else RuleSet((*rules, *self._seeds))]

    def _read(self) -> RuleSet | None:
        """Return the rules of the policy file; None if the settings name none."""
        if not self._options.has_policy:
            return None
        model = _text(_MODEL, self._options.model_file)
        policy = _text(_POLICY, self._options.policy_file)
        try:
            return RuleSet(read_policy(model, policy))
        except InvalidRequestError as error:
            raise ConfigError(f"{_POLICY}: {self._options.policy_file}: {error}") from error


def _text(setting: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{setting}: {path} is larger than {FILE_BYTES_MAX} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{setting}: cannot read {path}: {reason}") from error
