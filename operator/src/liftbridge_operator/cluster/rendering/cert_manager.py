"""The `Certificate` of cert-manager, when it issues the client-facing certificate."""

from liftbridge_operator.cluster.rendering.subject import Cluster, Inputs, Object, metadata
from liftbridge_operator.model import names


def certificate(cluster: Cluster, inputs: Inputs, alternative_names: tuple[str, ...]) -> Object:
    """Render the `Certificate`, whose Secret pods mount.

    Args:
        cluster: The cluster; its `tls` names an issuer.
        inputs: Inputs of rendering, with the cluster id.
        alternative_names: DNS names and addresses from `cluster.certificates.subject_names`.
    """
    tls = cluster.spec.tls
    assert tls.issuer_ref is not None
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata(cluster, inputs, names.leaf(cluster.name)),
        "spec": {
            "secretName": names.leaf(cluster.name),
            "issuerRef": tls.issuer_ref.manifest(),
            "commonName": names.headless(cluster.name),
            "dnsNames": [name for name in alternative_names if not is_address(name)],
            "ipAddresses": [name for name in alternative_names if is_address(name)],
            "duration": tls.duration,
            "renewBefore": tls.renew_before,
            "usages": ["digital signature", "server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        },
    }


def is_address(name: str) -> bool:
    """Return whether a name in a certificate is an IP address rather than a DNS name."""
    return ":" in name or name.replace(".", "").isdigit()
