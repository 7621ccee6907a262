"""What proxies share through Redis; nothing in here is ever awaited by a request."""
