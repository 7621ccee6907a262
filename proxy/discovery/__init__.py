"""Finding replicas while the proxy runs: sources that tell, again and again, which ones there are."""

from proxy.config import Settings
from proxy.discovery.dns import DnsSource
from proxy.discovery.source import Source
from proxy.names import Names


def source(settings: Settings, names: Names) -> Source | None:
    """The source that is configured; None where the fleet is what the settings name."""
    if settings.discovery == "dns":
        return DnsSource(settings.replicas, settings.dns, names)
    if settings.discovery == "kubernetes":
        from proxy.discovery.kubernetes import KubernetesSource  # noqa: PLC0415 - an optional extra

        return KubernetesSource(settings.kubernetes)
    return None
