"""The Secret with which applications use embedded NATS, on an API server in memory."""

import base64
import itertools

from liftbridge_operator.cluster.securing.secret_store import SecretStore
from liftbridge_operator.cluster.x509 import CryptographyIssuer
from liftbridge_operator.kube.kinds import SECRETS
from liftbridge_testkit.kube.memory import MemoryKube
from liftbridge_testkit.resources.clusters import (
    NAMESPACE,
    PATHS,
    cluster_of,
    inputs_for,
    load_spec,
)

SPEC = load_spec(next(path for path in PATHS if path.stem == "embedded"))
ISSUER = CryptographyIssuer()


async def test_applications_get_a_secret_of_their_own_for_embedded_nats():
    kube, numbers = MemoryKube(), itertools.count()
    store = SecretStore(
        kube,
        ISSUER,
        lambda: 1_800_000_000,
        lambda: f"password{next(numbers)}",
        lambda: f"{next(numbers):064}",
    )
    await store(cluster_of(SPEC), inputs_for(SPEC), may_write=True, served=None, held={})

    async def files(name):
        found = (await kube.get(SECRETS, NAMESPACE, name))["data"]
        return {key: base64.b64decode(text) for key, text in found.items()}

    internal = await files("orders-internal")
    assert await files("orders-nats-client") == {
        "address": b"orders-internal.shop.svc:4222",
        "username": b"client",
        "password": (await files("orders-nats"))["client-password"],
        "ca.crt": internal["ca.crt"],
    }
    assert "orders-internal.shop.svc" in ISSUER.describe(internal["tls.crt"])[0].names
