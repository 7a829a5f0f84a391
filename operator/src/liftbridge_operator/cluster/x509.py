"""`cluster.certificates.port.Issuer` with the library `cryptography`: P-256 keys, SHA-256."""

import hashlib
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from liftbridge_operator.cluster.certificates.port import Known, Pair


class CryptographyIssuer:
    """Makes keys and certificates; has no state."""

    def make_authority(self, name: str, *, not_before_s: int, not_after_s: int) -> Pair:
        """See `Issuer.make_authority`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = _builder(subject, subject, key.public_key(), not_before_s, not_after_s)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
                critical=False,
            )
        )
        return _pair(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self,
        authority: Pair,
        name: str,
        names: tuple[str, ...],
        *,
        not_before_s: int,
        not_after_s: int,
    ) -> Pair:
        """See `Issuer.issue`."""
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        alternatives = x509.SubjectAlternativeName([_alternative(one) for one in names])
        extensions = (x509.ExtendedKeyUsage(both), alternatives)
        return _issued(authority, name, (not_before_s, not_after_s), extensions)

    def issue_client(
        self, authority: Pair, name: str, *, not_before_s: int, not_after_s: int
    ) -> Pair:
        """See `Issuer.issue_client`."""
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return _issued(authority, name, (not_before_s, not_after_s), (usage,))

    def describe(self, pem: bytes) -> tuple[Known, ...]:
        """See `Issuer.describe`."""
        return tuple(_known(certificate) for certificate in x509.load_pem_x509_certificates(pem))

    def fits(self, pair: Pair) -> bool:
        """See `Issuer.fits`."""
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        try:
            cert = x509.load_pem_x509_certificate(pair.cert).public_key()
            key = serialization.load_pem_private_key(pair.key, password=None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return False
        return cert.public_bytes(*form) == key.public_bytes(*form)


def _issued(
    authority: Pair,
    name: str,
    validity: tuple[int, int],
    extensions: tuple[x509.ExtensionType, ...],
) -> Pair:
    """Return a certificate of a new key that an authority has signed."""
    not_before_s, not_after_s = validity
    signer = x509.load_pem_x509_certificate(authority.cert)
    signing = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    assert not_after_s <= int(signer.not_valid_after_utc.timestamp())
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), signer.subject, key.public_key(), not_before_s, not_after_s)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    ).add_extension(_usage(is_authority=False), critical=True)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    ).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
    )
    return _pair(builder.sign(signing, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_before_s: int,
    not_after_s: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(not_before_s, UTC))
        .not_valid_after(datetime.fromtimestamp(not_after_s, UTC))
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        cert.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _known(cert: x509.Certificate) -> Known:
    own = _key_id(cert)
    return Known(
        fingerprint=cert.fingerprint(hashes.SHA256()).hex(),
        key_id=own,
        issuer_key_id=_issuer_key_id(cert) or own,
        not_before_s=int(cert.not_valid_before_utc.timestamp()),
        not_after_s=int(cert.not_valid_after_utc.timestamp()),
        names=_names(cert),
    )


def _key_id(cert: x509.Certificate) -> str:
    """Return the subject key identifier, or a hash of the key where there is none."""
    try:
        extension = cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(cert.public_key().public_bytes(*form)).hexdigest()
    return extension.value.digest.hex()


def _issuer_key_id(cert: x509.Certificate) -> str:
    try:
        extension = cert.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
    except x509.ExtensionNotFound:
        return ""
    identifier = extension.value.key_identifier
    return identifier.hex() if identifier is not None else ""


def _names(cert: x509.Certificate) -> tuple[str, ...]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses: list[IPv4Address | IPv6Address] = [
        one
        for one in names.get_values_for_type(x509.IPAddress)
        if isinstance(one, IPv4Address | IPv6Address)
    ]
    return tuple(sorted([*names.get_values_for_type(x509.DNSName), *map(str, addresses)]))


def bundle(certificates: list[bytes]) -> bytes:
    """Concatenate PEM certificates into a bundle."""
    return b"".join(certificate.rstrip(b"\n") + b"\n" for certificate in certificates)
