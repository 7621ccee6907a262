"""TLS on both sides: what a person sets, and the contexts that are made of it.

Certificates are verified unless that is switched off for replicas, by name, with a warning. Files that are
renewed are read again while the proxy runs; connections that are open keep what they began with. Must never
ask for a passphrase: nobody is there to type it.
"""

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

from pydantic import model_validator

from proxy.logs import logger
from proxy.spec import Frozen
from proxy.watched import Watched

HANDSHAKE_SECONDS: Final = 10.0
"""A client that has not finished its handshake by then is gone."""
SHUTDOWN_SECONDS: Final = 3.0
"""How long a client may take to say that it has understood the end."""


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
            _load_listening(self, _listening())
        if self.upstream_ca is not None or self.upstream_cert is not None:
            _load_upstream(self, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return self


class Contexts:
    """The contexts of one proxy. Made once: reading the system's authorities takes tens of milliseconds."""

    def __init__(self, tls: Tls) -> None:
        """Raises ValueError where a file cannot be used any more."""
        self.listening = _listening() if tls.cert is not None else None
        """None: clients speak plain HTTP."""
        self.upstream = ssl.create_default_context(cafile=tls.upstream_ca)
        """For replicas whose URL begins with https."""
        self.upstream.set_alpn_protocols(["http/1.1"])
        if not tls.upstream_verify:
            logger.warning("tls.upstream_verify is false: replicas' certificates are not looked at")
            self.upstream.check_hostname = False
            self.upstream.verify_mode = ssl.CERT_NONE
        self._watched: list[Watched[Callable[[], None]]] = []
        if self.listening is not None:
            self._watch("tls.cert", [tls.cert, tls.key, tls.client_ca], tls, self.listening, _load_listening)
        upstream = [tls.upstream_cert, tls.upstream_key, tls.upstream_ca]
        if any(upstream):
            self._watch("tls.upstream_cert", upstream, tls, self.upstream, _load_upstream)

    @property
    def fault(self) -> str | None:
        """Why the files are not what is in force; None if they are."""
        return next((each.fault for each in self._watched if each.fault), None)

    async def look(self) -> None:
        """Read again what has changed; to be called every few seconds."""
        for each in self._watched:
            await each.look()

    def _watch(
        self,
        what: str,
        paths: list[Path | None],
        tls: Tls,
        context: ssl.SSLContext,
        load: Callable[[Tls, ssl.SSLContext], None],
    ) -> None:
        def read() -> Callable[[], None]:
            # Tried on another context: a pair that does not match would leave this one without a key.
            load(tls, ssl.SSLContext(context.protocol))
            return partial(load, tls, context)

        files = [path for path in paths if path is not None]
        self._watched.append(Watched(what, files, read, lambda put_in_force: put_in_force()))


def _listening() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_listening(tls: Tls, context: ssl.SSLContext) -> None:
    assert tls.cert is not None
    _load_pair("cert", tls.cert, tls.key, context)
    if tls.client_ca is not None:
        _load_authorities("client_ca", tls.client_ca, context)
        context.verify_mode = ssl.CERT_REQUIRED


def _load_upstream(tls: Tls, context: ssl.SSLContext) -> None:
    if tls.upstream_cert is not None:
        _load_pair("upstream_cert", tls.upstream_cert, tls.upstream_key, context)
    if tls.upstream_ca is not None:
        _load_authorities("upstream_ca", tls.upstream_ca, context)


def _load_pair(name: str, cert: Path, key: Path | None, context: ssl.SSLContext) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise ValueError(f"has a {name} that cannot be used ({_files(cert, key)}: {_why(error)})") from None


def _load_authorities(name: str, path: Path, context: ssl.SSLContext) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"has a {name} that cannot be used ({path}: {_why(error)})") from None


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
