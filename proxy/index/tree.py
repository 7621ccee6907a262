"""The stored prefixes: a radix tree of runs, and for each holder its runs in the order of last use.

A run is a stretch of blocks that no stored prompt leaves halfway. Work is per run, not per block: a
conversation that grows is one run that grows. Nothing here decides what to store or drop.

Invariants:
- a holder of a run holds all of every run above it;
- a hold is never newer than the same holder's hold above it, so each holder's list, oldest first, is exactly
  the order in which a prefix-closed LRU evicts: older chains first, and of one chain the deepest block first;
- the last block of a run is held by somebody; a run without holders is gone, and so are its descendants.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Iterator


class Link:
    """A place in a holder's circular list, oldest to newest. Alone, it is an empty list's anchor."""

    __slots__ = ("newer", "older")

    def __init__(self) -> None:
        self.older: Link = self
        self.newer: Link = self

    def insert_after(self, link: Link) -> None:
        """Take the place just newer than `link`."""
        self.older, self.newer = link, link.newer
        link.newer.older = self
        link.newer = self

    def unlink(self) -> None:
        """Leave the list."""
        self.older.newer = self.newer
        self.newer.older = self.older


class Holder(Link):
    """Anyone who holds blocks, compared by identity; the anchor of the list of its holds."""

    __slots__ = ("blocks", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.blocks = 0

    def oldest_first(self) -> Iterator[Hold]:
        """Its holds; the one in hand may be cut."""
        link = self.newer
        while isinstance(link, Hold):
            following = link.newer
            yield link
            link = following


class Hold(Link):
    """One holder's share of one run: its first `blocks` blocks, last used at `tick`."""

    __slots__ = ("blocks", "run", "tick")

    def __init__(self, run: Run, blocks: int, tick: int) -> None:
        super().__init__()
        self.run = run
        self.blocks = blocks
        self.tick = tick


class Run:
    """Consecutive blocks below `parent`; `children` by the first key of each."""

    __slots__ = ("children", "holds", "keys", "parent")

    def __init__(self, keys: array[int], parent: Run | None) -> None:
        self.keys = keys
        self.parent = parent
        self.children: dict[int, Run] = {}
        self.holds: dict[Holder, Hold] = {}

    def common(self, keys: array[int], start: int) -> int:
        """How many of its keys equal those from `keys[start]`, the first being known to.

        Keys are chained, so one equal pair vouches for all before it: try the last, else search by halves.
        """
        own = self.keys
        end = min(len(own), len(keys) - start)
        if own[end - 1] == keys[start + end - 1]:
            return end
        low, high = 1, end - 1
        while low < high:
            middle = (low + high) // 2
            if own[middle] == keys[start + middle]:
                low = middle + 1
            else:
                high = middle
        return low


class Tree:
    """All runs, below a root that has no keys."""

    def __init__(self) -> None:
        self.root = Run(array("Q"), None)
        self.blocks = 0
        self.runs = 0
        self._walked: tuple[array[int] | None, tuple[list[Run], int, int]] = (None, ([], 0, 0))

    def walk(self, keys: array[int]) -> tuple[list[Run], int, int]:
        """The runs along `keys`, the blocks matched in all of them, and in the last of them.

        A match is followed by a prediction of the same keys: the last walk is remembered until runs change.
        """
        walked, found = self._walked
        if walked is keys:
            return found
        path: list[Run] = []
        run, depth, matched, end = self.root, 0, 0, len(keys)
        while depth < end and matched == len(run.keys):
            child = run.children.get(keys[depth])
            if child is None:
                break
            run = child
            path.append(run)
            matched = run.common(keys, depth)
            depth += matched
        found = path, depth, matched
        self._walked = keys, found
        return found

    def _forget_walk(self) -> None:
        self._walked = (None, ([], 0, 0))

    def grow(self, path: list[Run], keys: array[int]) -> None:
        """Store `keys`, not empty, below the whole of `path`: in place where nothing branches off yet."""
        self._forget_walk()
        self.blocks += len(keys)
        parent = path[-1] if path else self.root
        if path and not parent.children:
            parent.keys.extend(keys)
            return
        run = Run(keys, parent)
        parent.children[keys[0]] = run
        path.append(run)
        self.runs += 1

    def split(self, run: Run, at: int) -> Run:
        """Make two runs of one; the new one takes the first `at` blocks, `run` keeps the rest."""
        self._forget_walk()
        parent = run.parent
        assert parent is not None
        upper = Run(run.keys[:at], parent)
        run.keys = run.keys[at:]
        run.parent = upper
        parent.children[upper.keys[0]] = upper
        upper.children[run.keys[0]] = run
        self.runs += 1
        for holder, hold in list(run.holds.items()):
            if hold.blocks > at:
                above = Hold(upper, at, hold.tick)
                above.insert_after(hold)
                upper.holds[holder] = above
                hold.blocks -= at
            else:
                hold.run = upper
                upper.holds[holder] = run.holds.pop(holder)
        return upper

    def merge(self, run: Run) -> bool:
        """Undo a split whose other branch is gone, if no order of use is lost by it. True if done."""
        self._forget_walk()
        upper = run.parent
        if upper is None or upper.parent is None:
            return False
        if len(upper.children) > 1 or len(upper.holds) > len(run.holds):
            return False
        if any(hold.tick != upper.holds[holder].tick for holder, hold in run.holds.items()):
            return False
        at = len(upper.keys)
        for holder, hold in run.holds.items():
            upper.holds[holder].unlink()
            hold.blocks += at
        run.keys = upper.keys + run.keys
        run.parent = upper.parent
        run.parent.children[run.keys[0]] = run
        self.runs -= 1
        return True

    def touch(self, holder: Holder, run: Run, blocks: int, tick: int) -> None:
        """`holder` now holds the first `blocks` blocks of `run`, no fewer than before, and used them last."""
        hold = run.holds.get(holder)
        if hold is None:
            hold = run.holds[holder] = Hold(run, blocks, tick)
            holder.blocks += blocks
        else:
            hold.unlink()
            holder.blocks += blocks - hold.blocks
            hold.blocks = blocks
            hold.tick = tick
        hold.insert_after(holder.older)

    def cut(self, holder: Holder, hold: Hold, keep: int) -> None:
        """`holder`, who holds nothing below this run, keeps the first `keep` blocks of its hold on it."""
        self._forget_walk()
        run, had = hold.run, hold.blocks
        holder.blocks -= had - keep
        if keep:
            hold.blocks = keep
        else:
            hold.unlink()
            del run.holds[holder]
        if run.children or had < len(run.keys):
            return  # others hold as much
        longest = max((other.blocks for other in run.holds.values()), default=0)
        self.blocks -= had - longest
        if longest:
            del run.keys[longest:]
        else:
            assert run.parent is not None
            del run.parent.children[run.keys[0]]
            self.runs -= 1
