"""The NATS server in each broker's pod: its container, its configuration, its credentials.

Servers discover one another by three fixed seeds and gossip, so the configuration is the same for
any number of brokers. Connections between them use TLS with the internal authority. There are two
users: `broker`, with all permissions, and `client`, for applications, without access to the
subjects between brokers; a Secret of its own has what applications need. They share one account: a
stream attaches to subjects that applications publish to, and imports between accounts work in one
direction only.
"""

import json
from typing import Final

from liftbridge_operator.cluster.rendering.settings import SEEDS, namespace_of
from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object
from liftbridge_operator.model import names
from liftbridge_operator.model.nats import EmbeddedNats
from liftbridge_operator.model.network import ListenerType
from liftbridge_operator.model.values import size_bytes

INTERNAL_ROOT: Final = "_LIFTBRIDGE"
"""First token of the subjects between brokers, of every cluster."""

BROKER_USER: Final = "broker"
CLIENT_USER: Final = "client"
ROUTE_USER: Final = "route"
PASSWORDS: Final = ("broker-password", "client-password", "route-password")
"""Keys of the credentials; each password is generated once, of letters and digits."""

# nats-server reads certificates and passwords at its start and at SIGHUP. No process outside the
# pod can send a signal, so the shell that starts it compares the mounted files, and forwards
# SIGTERM. It reads the files before the server does: a change in between is never missed.
_WATCH: Final = """\
digest() { cat "$@" 2>/dev/null | cksum; }
before=$(digest $FILES)
nats-server --config "$CONFIG" & server=$!
trap 'kill -TERM $server' TERM INT
while kill -0 $server 2>/dev/null; do
  sleep $PAUSE & wait $!
  now=$(digest $FILES)
  if [ "$now" != "$before" ]; then kill -HUP $server && before=$now; fi
done
wait $server
"""


def server_text(embedded: EmbeddedNats) -> str:
    """Render the configuration of the servers; it includes a file with all secrets."""
    internal = names.INTERNAL_DIRECTORY
    lines = (
        "server_name: $POD_NAME",
        f'listen: "0.0.0.0:{names.CLIENTS_PORT}"',
        f"http_port: {names.MONITOR_PORT}",
        f"max_payload: {size_bytes(embedded.payload_bytes_max)}",
        "tls {",
        f'  cert_file: "{internal}/{names.CERT_KEY}"',
        f'  key_file: "{internal}/{names.KEY_KEY}"',
        f'  ca_file: "{internal}/{names.CA_KEY}"',
        "}",
        f'include "../nats-auth/{names.NATS_AUTH_KEY}"',
    )
    return "".join(f"{line}\n" for line in lines)


def auth_text(cluster: Cluster, inputs: Inputs, passwords: dict[str, str]) -> str:
    """Render users and routes, for the Secret.

    Args:
        cluster: The cluster.
        inputs: Inputs of rendering, with the cluster id.
        passwords: Passwords by the keys in `PASSWORDS`.
    """
    internal = names.INTERNAL_DIRECTORY
    own = json.dumps([f"{INTERNAL_ROOT}.>", f"{namespace_of(cluster, inputs)}.>"])
    credentials = f"{ROUTE_USER}:{passwords['route-password']}"
    routes = [
        f'    "nats-route://{credentials}@{host}:{names.ROUTES_PORT}"' for host in seeds(cluster)
    ]
    lines = (
        "authorization {",
        "  users: [",
        f'    {{user: {BROKER_USER}, password: "{passwords["broker-password"]}"}}',
        f'    {{user: {CLIENT_USER}, password: "{passwords["client-password"]}", permissions: {{',
        f"      publish: {{deny: {own}}}, subscribe: {{deny: {own}}}",
        "    }}",
        "  ]",
        "}",
        "cluster {",
        f'  name: "{inputs.cluster_id}"',
        f'  listen: "0.0.0.0:{names.ROUTES_PORT}"',
        "  authorization {",
        f'    user: {ROUTE_USER}, password: "{passwords["route-password"]}"',
        "  }",
        "  tls {",
        f'    cert_file: "{internal}/{names.CERT_KEY}"',
        f'    key_file: "{internal}/{names.KEY_KEY}"',
        f'    ca_file: "{internal}/{names.CA_KEY}"',
        "    verify: true",
        "  }",
        "  routes: [",
        *routes,
        "  ]",
        "}",
    )
    return "".join(f"{line}\n" for line in lines)


def seeds(cluster: Cluster) -> list[str]:
    """Return the seed hosts, to which every server connects."""
    return [
        names.host(names.broker(cluster.name, ordinal), cluster.name, cluster.namespace)
        for ordinal in range(SEEDS)
    ]


def host(cluster: Cluster) -> str:
    """Return the host at which applications reach the servers: the Service of a listener.

    Without a listener in the cluster it is the headless Service.
    """
    inside = [one.name for one in cluster.spec.listeners if one.type is ListenerType.INTERNAL]
    service = names.headless(cluster.name)
    if inside:
        service = names.listener(cluster.name, inside[0])
    return f"{service}.{cluster.namespace}.svc"


def container(cluster: Cluster, inputs: Inputs, security: Object) -> Object | None:
    """Render the native sidecar, which starts before the broker and ends after it, if any."""
    embedded = cluster.spec.nats.embedded
    if embedded is None:
        return None
    watched = f"{names.INTERNAL_DIRECTORY}/* {names.NATS_AUTH_DIRECTORY}/*"
    return {
        "name": names.NATS_CONTAINER,
        "image": embedded.image or inputs.image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-c", _WATCH],
        "env": [
            {
                "name": "POD_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
            },
            {"name": "CONFIG", "value": f"{names.NATS_DIRECTORY}/{names.NATS_KEY}"},
            {"name": "FILES", "value": watched},
            {"name": "PAUSE", "value": "5"},
            # Go does not detect the memory limit of its container otherwise.
            {"name": "GOMEMLIMIT", "value": str(size_bytes(embedded.memory) * 9 // 10)},
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (*names.NATS_PORT_NAMES.items(), ("monitor", names.MONITOR_PORT))
        ],
        # A broker that starts before its server would count an attempt as lost.
        "startupProbe": _probe(period=1, failures=60),
        "livenessProbe": _probe(period=10, failures=6),
        "resources": {
            "requests": {"cpu": embedded.cpu, "memory": embedded.memory},
            "limits": {"memory": embedded.memory},
        },
        "securityContext": security,
        "volumeMounts": [
            {"name": names.NATS_VOLUME, "mountPath": names.NATS_DIRECTORY, "readOnly": True},
            {
                "name": names.NATS_AUTH_VOLUME,
                "mountPath": names.NATS_AUTH_DIRECTORY,
                "readOnly": True,
            },
            {
                "name": names.INTERNAL_VOLUME,
                "mountPath": names.INTERNAL_DIRECTORY,
                "readOnly": True,
            },
        ],
    }


def _probe(*, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": "/healthz?js-enabled-only=true", "port": "monitor", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
