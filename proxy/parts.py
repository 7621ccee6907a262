"""What there is beside models and replicas, and how it fares: Redis, discovery, files that were replaced."""

from proxy.certificates import Contexts
from proxy.discovery.source import Source
from proxy.gate import Gate
from proxy.shared.client import Link


class Parts:
    """Tells of what was put in; what nobody asked for is not told of."""

    def __init__(self, link: Link | None, source: Source | None, gate: Gate, tls: Contexts) -> None:
        self._link = link
        self._source = source
        self._gate = gate
        self._tls = tls

    def told(self) -> dict[str, object]:
        """By name: whether it is up, and why not."""
        parts: dict[str, object] = {}
        link, source = self._link, self._source
        if link is not None:
            parts["redis"] = {"up": True} if link.up else {"up": False, "why": link.why}
        if source is not None:
            known = {"source": source.kind, "up": source.why is None}
            parts["discovery"] = known if source.why is None else {**known, "why": source.why}
        for name, fault in (("api_keys", self._gate.callers.fault), ("certificates", self._tls.fault)):
            if fault is not None:
                parts[name] = {"up": False, "why": "the new file cannot be used; the log says why"}
        return parts
