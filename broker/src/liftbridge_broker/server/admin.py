"""The operator port: the services of `liftbridge.ext.v1` for operators, on a separate listener.

It listens before there is a cluster, because `Bootstrap` reaches a waiting broker through it.
Except on loopback, it needs TLS with client certificates, because a client that reaches it may move
and recover data.
"""

import ipaddress
import ssl
from typing import Final

from liftbridge_broker.api.access.control import AccessControl
from liftbridge_broker.api.grpc.call import Authorize, allow
from liftbridge_broker.api.grpc.reflection import Reflection
from liftbridge_broker.api.grpc.transport import GrpcServer
from liftbridge_broker.api.operators.access_rules import AccessService
from liftbridge_broker.api.operators.admin import AdminService
from liftbridge_broker.api.operators.admin_changes import AdminChanges
from liftbridge_broker.api.operators.admin_context import AdminContext
from liftbridge_broker.api.operators.admin_keys import KeyService
from liftbridge_broker.api.operators.admin_restart import RestartService
from liftbridge_broker.api.operators.quotas import QuotaService
from liftbridge_broker.api.operators.tokens import TokenService
from liftbridge_broker.errors import ConfigError
from liftbridge_broker.http2.limits import Limits
from liftbridge_broker.ports.authenticator import Authenticator
from liftbridge_broker.ports.observe import Observer
from liftbridge_broker.server.limits import OPERATOR_FILES, client_files_max

ADMIN: Final = "/liftbridge.ext.v1.Admin/"
TOKENS: Final = "/liftbridge.ext.v1.Tokens/"
ACCESS: Final = "/liftbridge.ext.v1.Access/"
QUOTAS: Final = "/liftbridge.ext.v1.Quotas/"
CONNECTIONS_MAX: Final = 100


def make_admin(
    context: AdminContext,
    observer: Observer | None = None,
    clients: AccessControl | None = None,
    authorize: Authorize = allow,
    authenticator: Authenticator | None = None,
) -> GrpcServer:
    """Create a server with the methods of all services for operators; not listening yet.

    Args:
        context: Context of the services.
        observer: Receives refused connections, and changes of the access rules.
        clients: Access control of the ports for clients.
        authorize: Refuses calls that the access rules forbid on this port.
        authenticator: Finds out who calls.
    """
    server = GrpcServer(
        Limits(),
        connections_max=CONNECTIONS_MAX,
        files_max=client_files_max() + OPERATOR_FILES,
        observer=observer,
        authenticator=authenticator,
        authorize=authorize,
    )
    register_admin(server, context, clients, observer)
    register_tokens(server, context, observer)
    register_quotas(server, context, observer)
    Reflection(server)
    return server


def register_admin(
    server: GrpcServer,
    context: AdminContext,
    clients: AccessControl | None = None,
    observer: Observer | None = None,
) -> None:
    """Register every method of Admin and Access; see `make_admin`."""
    views = AdminService(context)
    server.unary(ADMIN + "Identity", views.identity)
    server.unary(ADMIN + "Bootstrap", views.bootstrap)
    server.unary(ADMIN + "ClusterStatus", views.cluster)
    server.unary(ADMIN + "ListBrokers", views.brokers)
    server.unary(ADMIN + "BrokerStatus", views.status)
    server.unary(ADMIN + "ListPartitions", views.partitions)
    server.unary(ADMIN + "ListReassignments", views.reassignments)
    restart = RestartService(context)
    server.unary(ADMIN + "CheckRestart", restart.check)
    server.unary(ADMIN + "VerifyRestart", restart.verify)
    changes = AdminChanges(context)
    server.unary(ADMIN + "CordonBroker", changes.cordon)
    server.unary(ADMIN + "UncordonBroker", changes.uncordon)
    server.unary(ADMIN + "RemoveBroker", changes.remove_broker)
    server.unary(ADMIN + "TransferLeadership", changes.transfer)
    server.unary(ADMIN + "ElectPreferred", changes.elect_preferred)
    server.unary(ADMIN + "ElectUnclean", changes.elect_unclean)
    server.unary(ADMIN + "TransferMetadataLeadership", changes.transfer_metadata)
    server.unary(ADMIN + "AddLearner", changes.add_learner)
    server.unary(ADMIN + "PromoteLearner", changes.promote)
    server.unary(ADMIN + "RemoveMember", changes.remove_member)
    server.unary(ADMIN + "StartReassignment", changes.start_reassignment)
    server.unary(ADMIN + "CancelReassignment", changes.cancel_reassignment)
    server.unary(ADMIN + "Retire", changes.retire)
    server.unary(ADMIN + "SetFeatureLevel", changes.set_feature_level)
    server.unary(ADMIN + "SetCatchUpRate", changes.set_catch_up_rate)
    server.unary(ADMIN + "SetStreamOwner", changes.set_stream_owner)
    server.unary(ADMIN + "ListSettings", views.settings)
    server.unary(ADMIN + "ReloadSettings", changes.reload)
    access = AccessService(context, clients or AccessControl(), observer)
    server.unary(ACCESS + "ListRules", access.list_rules)
    server.unary(ACCESS + "ChangeRules", access.change_rules)
    server.unary(ACCESS + "DisableAccess", access.disable)
    server.unary(ACCESS + "CheckAccess", access.check)
    server.unary(ACCESS + "ConvertPolicy", access.convert)
    server.unary(ACCESS + "NatsPermissions", access.nats_permissions)


def register_quotas(
    server: GrpcServer, context: AdminContext, observer: Observer | None = None
) -> None:
    """Register every method of Quotas."""
    quotas = QuotaService(context, observer)
    server.unary(QUOTAS + "SetQuota", quotas.set_quota)
    server.unary(QUOTAS + "ListQuotas", quotas.list_quotas)


def register_tokens(
    server: GrpcServer, context: AdminContext, observer: Observer | None = None
) -> None:
    """Register every method of Tokens."""
    tokens = TokenService(context, observer)
    server.unary(TOKENS + "CreateToken", tokens.create)
    server.unary(TOKENS + "ListTokens", tokens.list_tokens)
    server.unary(TOKENS + "RevokeToken", tokens.revoke)
    keys = KeyService(context)
    server.unary(ADMIN + "KeysStatus", keys.status)
    server.unary(ADMIN + "RotateKeys", keys.rotate)
    server.unary(ADMIN + "RewrapKeys", keys.rewrap)


def check_admin_tls(host: str, context: ssl.SSLContext | None) -> None:
    """Refuse an operator port that other machines can reach without a client certificate.

    Args:
        host: Address to listen on.
        context: TLS of the listener; `None` for plaintext.

    Raises:
        ConfigError: The address is not loopback, and clients need no certificate.
    """
    if is_loopback(host):
        return
    if context is None or context.verify_mode is not ssl.CERT_REQUIRED:
        raise ConfigError(
            f"admin.listen {host}: other hosts reach it, so operators must show a certificate: set "
            "admin.tls.cert, admin.tls.key and admin.tls.ca, or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
