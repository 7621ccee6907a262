"""Fixtures of the end-to-end tests."""

from tests.support.fixtures import proxy_factory, upstream, upstreams

__all__ = ["proxy_factory", "upstream", "upstreams"]
