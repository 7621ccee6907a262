"""A Redis URL taken apart: which servers, which kind of set-up, which credentials and certificates.

Pure: it connects to nothing. The forms, with what redis-py's users know as query parameters:

    redis://user:password@host:port/db                     one server; a name is resolved at every connection
    redis+sentinel://user:password@host:port,host:port/service/db
    redis+cluster://user:password@host:port,host:port
    unix:///path/to/socket?db=0
    rediss://  rediss+sentinel://  rediss+cluster://       the same over TLS, with
        ssl_ca_certs=FILE           who may sign the server's certificate; the system's authorities if absent
        ssl_certfile, ssl_keyfile   our own certificate and key (PEM); ssl_password: the key's passphrase
        ssl_check_hostname=false    the certificate may be for another name
        ssl_cert_reqs=none          the certificate is not looked at: encrypted, but to whom is not known
    sentinel_username, sentinel_password                   where Sentinel has credentials of its own

Invariants: no message and no repr holds a password; what `parse` returns needs no further check.
"""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, cast
from urllib.parse import parse_qsl, unquote, urlsplit

Kind = Literal["none", "embedded", "single", "sentinel", "cluster"]
Address = tuple[str, int]
"""(host, port); (path, 0) is a Unix socket."""

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = (*_FILES, "ssl_password", "ssl_check_hostname", "ssl_cert_reqs")
_SENTINEL = ("sentinel_username", "sentinel_password")
_NO = ("0", "f", "false", "n", "no")
_USERINFO = re.compile(r"(?<=://)(?P<user>[^:@/]*):.*@")
_PASSWORD = re.compile(r"(?<=[?&])(?P<name>\w*password)=[^&#]*")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are; a password without a user is that of Redis' user `default`."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server proves who it is, and how we do. Paths of PEM files."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisURL:
    """What a URL says. `addresses` are of the server, of the Sentinels, or of some nodes of the cluster."""

    kind: Kind
    addresses: tuple[Address, ...] = ()
    credentials: Credentials = Credentials()
    sentinel: Credentials = Credentials()
    service: str = ""
    """Sentinel's name for the primary."""
    db: int = 0
    tls: Tls | None = None

    @property
    def shared(self) -> bool:
        """True if other proxies can reach it."""
        return self.kind not in ("none", "embedded")

    def __str__(self) -> str:
        """How it is called in logs: the addresses, and nothing secret."""
        where = ",".join(map(spell, self.addresses))
        return f"{self.service}@{where}" if self.service else where or self.kind


def parse(text: str) -> RedisURL:
    """Take a URL apart; ValueError is a phrase that follows the setting's name."""
    if text in ("none", "embedded"):
        return RedisURL(cast("Kind", text))
    try:
        url = urlsplit(text.strip())
    except ValueError:
        raise ValueError("is not a URL") from None
    if url.scheme not in _SCHEMES:
        raise ValueError(
            "should be embedded, none, or begin with one of " + ", ".join(f"{s}://" for s in _SCHEMES)
        )
    kind, secure = _SCHEMES[url.scheme]
    userinfo, _, hosts = url.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    credentials = Credentials(unquote(user) or None, unquote(password) or None)
    if credentials.user and credentials.password is None:
        raise ValueError("names a user and no password; write user:password@host")
    query = _query(url.query, kind, secure=secure)
    parts = [unquote(part) for part in url.path.split("/")[1:] if part]
    service = ""
    addresses: tuple[Address, ...] = ((unquote(url.path), 0),)
    if url.scheme == "unix":
        if hosts or not url.path.startswith("/"):
            raise ValueError("should name a socket by its path: unix:///path/to/socket")
        parts = []
    else:
        default = 26379 if kind == "sentinel" else 6379
        addresses = tuple(_address(host, default) for host in hosts.split(","))
        if kind == "single" and len(addresses) > 1:
            raise ValueError("names several servers; that is for redis+sentinel:// or redis+cluster://")
    if kind == "sentinel":
        if not parts:
            raise ValueError("should end with the name of the service: redis+sentinel://host:26379/service")
        service = parts.pop(0)
    if len(parts) > 1:
        raise ValueError("should end with the number of a database, if anything")
    db = _db(query.get("db", parts[0] if parts else "0"))
    if kind == "cluster" and db:
        raise ValueError("names a database, and a cluster has only database 0")
    sentinel = Credentials(query.get("sentinel_username"), query.get("sentinel_password"))
    return RedisURL(kind, addresses, credentials, sentinel, service, db, _tls(query) if secure else None)


def spell(address: Address) -> str:
    """An address as a person writes it."""
    host, port = address
    return host if not port else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def masked(text: str, mask: str) -> str:
    """The URL with `mask` in place of every password."""
    if "://" not in text:
        return text
    text = _USERINFO.sub(lambda found: f"{found['user']}:{mask}@", text)
    return _PASSWORD.sub(lambda found: f"{found['name']}={mask}", text)


def _query(query: str, kind: Kind, *, secure: bool) -> dict[str, str]:
    allowed = ("db", *(_SENTINEL if kind == "sentinel" else ()), *(_TLS if secure else ()))
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS and not secure:
            raise ValueError(f"has {name}, which needs TLS; begin with rediss instead of redis")
        if name not in allowed:
            match = get_close_matches(name, allowed, n=1)
            fix = f"did you mean {match[0]}?" if match else f"there are {', '.join(allowed)}"
            raise ValueError(f"has a parameter {name!r}, which is not known: {fix}")
        if name in values:
            raise ValueError(f"has {name} twice; keep one of them")
        values[name] = value
    return values


def _tls(query: dict[str, str]) -> Tls:
    for name in _FILES:
        if name in query and not Path(query[name]).is_file():
            raise ValueError(f"has {name}={query[name]}, and there is no such file; name a PEM file")
    if ("ssl_keyfile" in query or "ssl_password" in query) and "ssl_certfile" not in query:
        raise ValueError("has a key and no certificate; add ssl_certfile")
    reqs = query.get("ssl_cert_reqs", "required")
    if reqs not in ("required", "none"):
        raise ValueError("has another ssl_cert_reqs than required or none")
    check = query.get("ssl_check_hostname", "true").lower() not in _NO
    return Tls(
        ca_certs=query.get("ssl_ca_certs"),
        certfile=query.get("ssl_certfile"),
        keyfile=query.get("ssl_keyfile"),
        key_password=query.get("ssl_password"),
        check_hostname=check and reqs == "required",
        verify=reqs == "required",
    )


def _address(text: str, default: int) -> Address:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?", text)
    if found is None:
        raise ValueError("should name its servers as host:port")
    port = int(found[2] or default)
    if not 0 < port < 65536:
        raise ValueError("should name a port from 1 to 65535")
    return unquote(found[1].strip("[]")).lower(), port


def _db(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("should end with the number of a database, if anything")
    return int(text)
