"""Old turns are never tokenized or hashed again: a trie over the chunks of prompts.

A node holds what its chunk added: the keys of the blocks it completed, and the tokens left over. Nodes live
in one flat LRU, bounded in bytes. A node's name is a 128-bit hash of its chunk's text seeded with its
parent's name, so names mean the same forever, evicted or not. The leaf of a path is touched first and its
root last: parents outlive their children. Safe for one event loop and many threads.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_128_digest

from proxy.prompt.blocks import TOKEN_BYTES, chain
from proxy.prompt.cuts import Chunk, Chunks

_OVERHEAD: Final = 480
"""Bytes of a node beside its keys and tokens: objects, integers, name, entry in the map (measured)."""


@dataclass(slots=True)
class Node:
    """What is known at the end of a chunk."""

    name: bytes
    seed: int
    """What the names of its children are seeded with."""
    keys: "array[int]"
    """array('Q'): the keys that this chunk completed."""
    last: int
    """The last key of the whole chain so far, or its seed."""
    tail: bytes
    """The tokens after the last full block."""
    tokens: int
    """How many tokens the whole prompt has so far."""
    characters: int
    """How long the whole prompt is so far: characters of text, bytes of what came as tokens."""
    likely: int = 0
    """Characters of the child that was last gone to."""

    def size(self) -> int:
        """Bytes it takes, about."""
        return _OVERHEAD + 8 * len(self.keys) + len(self.tail)


class Trie:
    """Chunks of prompts, least recently used first out."""

    def __init__(self, block_size: int, budget: int) -> None:
        self.block_size = block_size
        self.budget = budget
        self.used = 0
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, seed: int, tokens: bytes) -> Node:
        """Compute the node before all text: a chain's seed, and tokens before any text (BOS); not kept."""
        name = xxh3_128_digest(tokens, seed)
        before = Node(name, _seed(name), array("Q"), seed, b"", 0, 0)
        return self.after(before, tokens, name)

    def walk(self, node: Node, chunks: Chunks, path: list[Node]) -> Chunk | None:
        """Follow `chunks` from `node` through what is known, adding each node to `path`; mark them as used.

        Returns the first chunk that is not known, None if all are.
        """
        known = self._nodes
        missed = None
        while True:
            likely = node.likely
            if likely and (chunk := chunks.guess(likely)) and (found := known.get(_name(node, chunk))):
                chunks.skip(likely)
            elif (missed := chunks.take()) is None or (found := known.get(_name(node, missed))) is None:
                break
            else:
                node.likely = len(missed) if isinstance(missed, str) else 0
            path.append(found)
            node = found
        self.touch(path)
        return missed

    def grow(self, parent: Node, chunk: Chunk, encode: Callable[[Chunk], bytes]) -> Node:
        """Find the node of a chunk after `parent`, or compute it from the chunk's tokens and keep it."""
        name = _name(parent, chunk)
        found = self._nodes.get(name)
        if found is not None:
            return found
        node = self.after(parent, encode(chunk), name, len(chunk))
        parent.likely = len(chunk) if isinstance(chunk, str) else 0
        with self._lock:
            known = self._nodes.setdefault(name, node)
            if known is node:
                self.used += node.size()
                while self.used > self.budget and self._nodes:
                    self.used -= self._nodes.popitem(last=False)[1].size()
        return known

    def after(self, parent: Node, tokens: bytes, name: bytes = b"", characters: int = 0) -> Node:
        """Compute the node that `tokens` lead to after `parent`, and do not keep it."""
        keys, tail = chain(parent.tail + tokens, self.block_size, parent.last)
        return Node(
            name=name,
            seed=_seed(name),
            keys=keys,
            last=keys[-1] if keys else parent.last,
            tail=tail,
            tokens=parent.tokens + len(tokens) // TOKEN_BYTES,
            characters=parent.characters + characters,
        )

    def touch(self, path: Sequence[Node]) -> None:
        """Mark the nodes of a path as used, from leaf to root, so that the root is the last to go."""
        if not path:
            return
        with self._lock:
            for node in reversed(path):
                if node.name in self._nodes:
                    self._nodes.move_to_end(node.name)


def _seed(name: bytes) -> int:
    return int.from_bytes(name[:8], "little")


def _name(parent: Node, chunk: Chunk) -> bytes:
    """Name a chunk after its parent. Text and the digest of media (bytes) never share a name."""
    if isinstance(chunk, str):
        return xxh3_128_digest(chunk.encode(), parent.seed)
    return xxh3_128_digest(b"\xff" + chunk, parent.seed)  # 0xff is in no UTF-8
