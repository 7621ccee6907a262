"""What one replica holds, in two tables: our keys, and the engine's handles that stand for them.

`Held` counts, for each key, the handles that stand for it, and remembers the net change since it was last
asked. `Whole` is the table of handles whose blocks are one or more whole blocks of ours. Pure; both forget
what is removed.

Invariants: no count is ever below one (what would be is absent); a key is held exactly while a handle stands
for it; what is unknown is removed without an error.

Memory, for a block of the engine that is one of ours: an entry in each table, and the two integers, which the
tables share. Copies and shared keys take room only where there are more than one.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Iterable

Keys = int | tuple[int, ...] | None
"""What a handle stands for: a key; several, of an engine whose blocks are larger; None, nothing of ours."""


class Held:
    """Distinct keys, how many handles stand for each, and what has changed."""

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self._more: dict[int, int] = {}
        """Key to handles beyond the first."""
        self._stored: set[int] = set()
        self._removed: set[int] = set()

    def add(self, key: int) -> None:
        """One handle more stands for `key`."""
        if key in self.keys:
            self._more[key] = self._more.get(key, 0) + 1
            return
        self.keys.add(key)
        if key in self._removed:
            self._removed.discard(key)
        else:
            self._stored.add(key)

    def add_all(self, keys: list[int]) -> None:
        """Add each of `keys`; quick where all are new, which is usual."""
        fresh = set(keys)
        if len(fresh) == len(keys) and self.keys.isdisjoint(fresh) and self._removed.isdisjoint(fresh):
            self.keys |= fresh
            self._stored |= fresh
            return
        for key in keys:
            self.add(key)

    def drop(self, key: int) -> None:
        """One handle less stands for `key`, which at least one did."""
        more = self._more.get(key)
        if more is not None:
            if more == 1:
                del self._more[key]
            else:
                self._more[key] = more - 1
            return
        self.keys.discard(key)
        if key in self._stored:
            self._stored.discard(key)
        else:
            self._removed.add(key)

    def clear(self) -> None:
        """Hold nothing; whoever is told of this need not be told what was held."""
        for each in (self.keys, self._more, self._stored, self._removed):
            each.clear()

    def take(self) -> tuple[array[int], array[int]]:
        """Return (removed, stored) since the last call."""
        change = array("Q", self._removed), array("Q", self._stored)
        self._removed.clear()
        self._stored.clear()
        return change


class Copies:
    """How many copies of one block the engine has said it keeps."""

    def __init__(self, *, counted: bool) -> None:
        """`counted`: the engine says of each copy that it is gone. Else the first word of it is the last."""
        self._counted = counted
        self._more: dict[int, int] = {}
        """Handle to copies beyond the first."""

    def of(self, handle: int) -> int:
        """Copies of a handle that is held."""
        return self._more.get(handle, 0) + 1

    def add(self, handle: int, copies: int = 1) -> None:
        """So many more copies of a handle that is held."""
        if self._counted:
            self._more[handle] = self._more.get(handle, 0) + copies

    def remove(self, handle: int) -> bool:
        """One copy less; True if none is left."""
        more = self._more.pop(handle, 0)
        if more > 1:
            self._more[handle] = more - 1
        return not more

    def forget(self, handle: int) -> None:
        """Whatever was counted, there is one."""
        self._more.pop(handle, None)

    def __bool__(self) -> bool:
        return bool(self._more)


class Whole:
    """Handles of blocks that are one or more whole blocks of ours."""

    def __init__(self, held: Held, *, counted: bool) -> None:
        self._held = held
        self._copies = Copies(counted=counted)
        self._handles: dict[int, Keys] = {}
        self._changed: list[int] = []
        """Handles to be told of: stored, or with fewer copies."""
        self._gone: list[int] = []

    def __len__(self) -> int:
        return len(self._handles)

    def last(self, handle: int) -> int | None:
        """Return the key that ends what `handle` stands for: where its children's keys begin."""
        keys = self._handles.get(handle)
        return keys[-1] if isinstance(keys, tuple) else keys

    def store(self, handles: list[int], keys: list[int]) -> None:
        """Each of `handles` is stored, and stands for the key beside it."""
        known = self._handles
        self._changed += handles
        if len(handles) > 1 and known.keys().isdisjoint(handles) and len(set(handles)) == len(handles):
            known.update(zip(handles, keys, strict=True))
            self._held.add_all(keys)
            return
        for handle, key in zip(handles, keys, strict=True):
            self._store(handle, key)

    def store_larger(self, handles: list[int], keys: list[int]) -> None:
        """Each of `handles` is stored, and stands for as many of `keys`, one handle after the other."""
        several = len(keys) // len(handles)
        for at, handle in enumerate(handles):
            self._store(handle, tuple(keys[at * several : (at + 1) * several]))

    def _store(self, handle: int, keys: int | tuple[int, ...]) -> None:
        known = self._handles
        if handle in known:
            before = known[handle]
            if before == keys:
                self._copies.add(handle)
                return
            if before is None:  # the same block, whose place is known by now
                self._copies.add(handle)
            else:  # another block of the same name: the first removal of either ends both
                self._copies.forget(handle)
                for key in _each(before):
                    self._held.drop(key)
        known[handle] = keys
        if isinstance(keys, int):
            self._held.add(keys)
        else:
            for key in keys:
                self._held.add(key)

    def store_unkeyed(self, handles: Iterable[int]) -> None:
        """Each of `handles` is stored, and nobody knows what it stands for, unless it was known before."""
        for handle in handles:
            if handle in self._handles:
                self._copies.add(handle)
                self._changed.append(handle)
            else:
                self._handles[handle] = None

    def remove(self, handles: Iterable[int]) -> None:
        """One copy of each of `handles` is gone."""
        known = self._handles
        for handle in handles:
            if handle not in known:
                continue
            if self._copies and not self._copies.remove(handle):
                self._changed.append(handle)
                continue
            keys = known.pop(handle)
            if keys is None:
                continue
            self._gone.append(handle)
            if isinstance(keys, int):
                self._held.drop(keys)
            else:
                for key in keys:
                    self._held.drop(key)

    def resume(self, handles: Iterable[tuple[int, int, int]]) -> None:
        """Take over (handle, key, copies), as `take` told them."""
        for handle, key, copies in handles:
            if handle not in self._handles:
                self._handles[handle] = key
                self._held.add(key)
                if copies > 1:
                    self._copies.add(handle, copies - 1)

    def all(self) -> list[tuple[int, int, int]]:
        """Return (handle, key, copies) of every handle that stands for one key."""
        of = self._copies.of
        return [(handle, key, of(handle)) for handle, key in self._handles.items() if isinstance(key, int)]

    def take(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Return the handles gone since the last call, and then (handle, key, copies) of those changed.

        Only of handles that stand for one key: those of larger blocks cannot be resumed.
        """
        gone, changed = self._gone, self._changed
        self._gone, self._changed = [], []
        get, of = self._handles.get, self._copies.of
        if self._copies:
            changed = list(dict.fromkeys(changed))
            return gone, [(each, key, of(each)) for each in changed if isinstance(key := get(each), int)]
        return gone, [(each, key, 1) for each in changed if isinstance(key := get(each), int)]


def _each(keys: int | tuple[int, ...]) -> tuple[int, ...]:
    return (keys,) if isinstance(keys, int) else keys
