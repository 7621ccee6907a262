"""Messages of an event feed that came before their turn: by number, within bounds in count and bytes."""


class Waiting:
    """Messages that came before their turn; bounded."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.messages: dict[int, bytes] = {}
        self.missed = -1
        """The highest number that there was no room for."""

    def __bool__(self) -> bool:
        return bool(self.messages) or self.missed >= 0

    @property
    def newest(self) -> int:
        """The highest number that came; -1 if none did."""
        return max(self.missed, max(self.messages, default=-1))

    def keep(self, seq: int, payload: bytes) -> None:
        """Keep a message, if there is room; of two with one number, the later."""
        self.drop(seq)
        if len(self.messages) >= self._most or self._bytes + len(payload) > self._most_bytes:
            self.missed = max(self.missed, seq)
        else:
            self.messages[seq] = payload
            self._bytes += len(payload)

    def drop(self, seq: int) -> bytes | None:
        """Take a message out; None if it is not there."""
        payload = self.messages.pop(seq, None)
        if payload is not None:
            self._bytes -= len(payload)
        return payload

    def forget(self) -> None:
        """Drop every message, but not that they came."""
        self.missed = self.newest
        self.messages.clear()
        self._bytes = 0

    def drop_until(self, last: int) -> None:
        """Take out what is not after `last`."""
        for seq in [seq for seq in self.messages if seq <= last]:
            self.drop(seq)
        if self.missed <= last:
            self.missed = -1
