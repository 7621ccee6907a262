"""TLS on both sides: what a person sets, and how its files are read.

Must never ask for a passphrase: nobody is there to type it. Invariant: the files of a `Tls` could be used
when it was made.
"""

import ssl
from pathlib import Path
from typing import Self

from pydantic import model_validator

from proxy.spec import Frozen


class Tls(Frozen):
    """Paths of PEM files; keys are without passphrases. Files that are renewed count without a restart."""

    cert: Path | None = None
    """PEM file with the certificate to listen with, and its chain; with it, clients speak https"""
    key: Path | None = None
    """PEM file with its key; absent: it is in the certificate's file"""
    client_ca: Path | None = None
    """PEM file with who signs clients' certificates; with it, clients must show one"""
    upstream_ca: Path | None = None
    """PEM file with who signs replicas' certificates; absent: the system's authorities"""
    upstream_cert: Path | None = None
    """PEM file with the certificate that replicas are shown"""
    upstream_key: Path | None = None
    """PEM file with its key; absent: it is in the certificate's file"""
    upstream_verify: bool = True
    """false: replicas' certificates are not looked at: encrypted, but to whom is not known"""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.cert is None and (self.key or self.client_ca):
            raise ValueError("has a key or client_ca and no certificate to listen with: set tls.cert")
        if self.upstream_cert is None and self.upstream_key:
            raise ValueError("has upstream_key and no certificate: set tls.upstream_cert")
        if self.upstream_ca is not None and not self.upstream_verify:
            raise ValueError("has upstream_ca, and upstream_verify=false, which would ignore it: keep one")
        if self.cert is not None:
            load_listening(self, new_listening())
        if self.upstream_ca is not None or self.upstream_cert is not None:
            load_upstream(self, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return self


def new_listening() -> ssl.SSLContext:
    """A context to listen with, without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_listening(tls: Tls, context: ssl.SSLContext) -> None:
    """Put the files for listening into a context. Raises ValueError, a phrase that follows `tls`."""
    assert tls.cert is not None
    _load_pair("cert", tls.cert, tls.key, context)
    if tls.client_ca is not None:
        _load_authorities("client_ca", tls.client_ca, context)
        context.verify_mode = ssl.CERT_REQUIRED


def load_upstream(tls: Tls, context: ssl.SSLContext) -> None:
    """Put the files for replicas into a context, likewise."""
    if tls.upstream_cert is not None:
        _load_pair("upstream_cert", tls.upstream_cert, tls.upstream_key, context)
    if tls.upstream_ca is not None:
        _load_authorities("upstream_ca", tls.upstream_ca, context)


def _load_pair(name: str, cert: Path, key: Path | None, context: ssl.SSLContext) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        files = _files(cert, key)
        fix = "name a PEM file that holds a certificate and one that holds its key, or one with both"
        raise ValueError(f"has a {name} that cannot be used ({files}: {_why(error)}): {fix}") from None


def _load_authorities(name: str, path: Path, context: ssl.SSLContext) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        fix = "name a PEM file of authorities"
        raise ValueError(f"has a {name} that cannot be used ({path}: {_why(error)}): {fix}") from None


def _no_passphrase() -> str:
    raise ValueError("its key has a passphrase; give one without")


def _why(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not this certificate's"
    return "it is not PEM, or lacks the certificate or the key"


def _files(cert: Path, key: Path | None) -> str:
    return str(cert) if key is None else f"{cert}, {key}"
