"""A Lua script as Redis is asked to run it."""

import hashlib


class Script:
    """A Lua script. Redis is sent its digest, and its text only when it does not know it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
