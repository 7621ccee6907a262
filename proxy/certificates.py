"""The TLS contexts of one proxy, with the certificates that are in force.

Certificates are verified unless that is switched off for replicas, by name, with a warning. Files that are
renewed are read again while the proxy runs; connections that are open keep what they began with.
"""

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from proxy.logs import logger
from proxy.tls import Tls, load_listening, load_upstream, new_listening
from proxy.watched import Watched

HANDSHAKE_SECONDS: Final = 10.0
"""A client that has not finished its handshake by then is gone."""
SHUTDOWN_SECONDS: Final = 3.0
"""How long a client may take to say that it has understood the end."""


class Contexts:
    """The contexts of one proxy. Made once: reading the system's authorities takes tens of milliseconds."""

    def __init__(self, tls: Tls) -> None:
        """Raises ValueError where a file cannot be used any more."""
        self.listening = new_listening() if tls.cert is not None else None
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
            self._watch("tls.cert", [tls.cert, tls.key, tls.client_ca], tls, self.listening, load_listening)
        upstream = [tls.upstream_cert, tls.upstream_key, tls.upstream_ca]
        if any(upstream):
            self._watch("tls.upstream_cert", upstream, tls, self.upstream, load_upstream)

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
