"""A platform's own certificate authority, and the certificates that it issues: X.509 (RFC 5280), ECDSA over P-256.

    DIR/ca.pem    what every service and client trusts        DIR/ca.key    its key, mode 0600
    DIR/<name>/certificate.pem, key.pem (0600)                of a service or a client

A renewed certificate keeps its key, so that a crash leaves a pair that fits; without its key.pem it gets a new key.
"""

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.access.principal import check_name
from common.errors import InvalidInput
from common.whole_files import write_whole

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
CERTIFICATE, KEY = "certificate.pem", "key.pem"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650
_SKEW = datetime.timedelta(minutes=5)
"""Clocks differ."""


@dataclass(frozen=True)
class Authority:
    """Attributes:
    directory: see above.
    """

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(self, name: str, *, hosts: Iterable[str], days: float) -> Path:
        """Writes a certificate with the subject CN=<name>, for servers and clients, and its key where there is none;
        returns their folder.

        Args:
            hosts: names and addresses at which it answers.
            days: until it ends.

        Raises:
            InvalidInput: it is no name of a principal, or its key cannot be used.
        """
        folder = self.directory / check_name(name)
        folder.mkdir(mode=0o700, exist_ok=True)
        key = _key_at(folder / KEY)
        names = set(hosts) | ({name} if name.replace("-", "").isalnum() else set())
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in sorted(names)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = _builder(name, self.certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=False).add_extension(issuer, critical=False)
        signed = builder.add_extension(alternatives, critical=False).sign(self.key, hashes.SHA256())
        write_whole(folder / CERTIFICATE, signed.public_bytes(serialization.Encoding.PEM))
        return folder


def open_authority(directory: Path) -> Authority:
    """Made where it is missing. Raises InvalidInput: its files cannot be used."""
    certificate_path, key_path = directory / AUTHORITY, directory / AUTHORITY_KEY
    if not certificate_path.exists():
        _make(certificate_path, key_path)
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{certificate_path} cannot be used: {error}") from error
    key = _key_at(key_path)
    if key.public_key() != certificate.public_key():
        raise InvalidInput(f"{key_path} is not the key of {certificate_path}")
    return Authority(directory, certificate, key)


def days_left(folder: Path) -> float:
    """Until the certificate in the folder ends; 0.0 without a certificate. Raises InvalidInput: it cannot be read."""
    found = _certificate_in(folder)
    return (found.not_valid_after_utc - _now()).total_seconds() / 86400 if found else 0.0


def issue_missing(directory: Path, names: Sequence[str], *, hosts: Sequence[str], days: float) -> list[Path]:
    """Issues for each of the names without a certificate for all hosts and with a third of `days` left; returns the
    folders of those. A new certificate keeps the hosts of its predecessor. Raises InvalidInput: a certificate is of
    another authority, or a file cannot be used."""
    try:
        authority = open_authority(directory)
        required = {str(_general_name(host).value) for host in hosts}
        known = {name: _hosts_in(directory / name, authority) for name in names}
        wanted = [name for name in names if required - known[name] or days_left(directory / name) < days / 3]
        return [authority.issue(name, hosts=required | known[name], days=days) for name in wanted]
    except OSError as error:
        raise InvalidInput(f"certificates cannot be written to {directory}: {error.strerror}") from error


def _certificate_in(folder: Path) -> x509.Certificate | None:
    """Raises InvalidInput."""
    try:
        return x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{folder / CERTIFICATE} cannot be read: {error}") from error


def _hosts_in(folder: Path, authority: Authority) -> set[str]:
    """Raises InvalidInput."""
    found = _certificate_in(folder)
    if found is None:
        return set()
    try:
        found.verify_directly_issued_by(authority.certificate)
        return {str(host.value) for host in found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise InvalidInput(
            f"{folder / CERTIFICATE} is not of the authority {authority.directory / AUTHORITY}; "
            "remove it for a new certificate"
        ) from error


def _make(certificate_path: Path, key_path: Path) -> None:
    key_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = _key_at(key_path)
    subject = _subject("Headrace authority")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder("Headrace authority", subject, key, _AUTHORITY_DAYS).add_extension(usage, critical=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    write_whole(certificate_path, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer_name=issuer, subject_name=_subject(name), public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_now() - _SKEW)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.not_valid_after(_now() + datetime.timedelta(days=days)).add_extension(identifier, critical=False)


def _key_at(path: Path) -> ec.EllipticCurvePrivateKey:
    """Made where it is missing. Raises InvalidInput."""
    if not path.exists():
        form = serialization.PrivateFormat.PKCS8
        made = ec.generate_private_key(ec.SECP256R1())
        pem = made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_whole(path, pem, mode=0o600)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"the key {path} cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"the key {path} is of another kind; ECDSA is expected")
    return key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    """Raises InvalidInput."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not host.isascii() or not host:
            raise InvalidInput(f"{host!r} is no address and no name in ASCII (RFC 5890: xn--...)") from None
        return x509.DNSName(host)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
