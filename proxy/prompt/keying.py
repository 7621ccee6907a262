"""One prompt on its way to keys: what is warm at once, the rest as it is asked for, maybe in a thread.

The event loop may read every public field while `run` works: `keys` is never changed, only replaced by a
longer array. Only one thread may be in `run` at a time.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from proxy.prompt.blocks import TOKEN_BYTES, chain
from proxy.prompt.cuts import NO_CHUNKS, Chunk, Chunks
from proxy.prompt.segments import Node, Trie


@dataclass(slots=True)
class Plan:
    """How a prompt is to be keyed."""

    root: Node
    chunks: Chunks
    encode: Callable[[Chunk], bytes]
    characters: int
    affinity: int
    suffix: bytes = b""
    keep_from: int = 0
    """Chunks shorter than this end a prompt; nobody will ask for them again."""
    whole: bytes | None = None
    """All of the prompt in place of chunks, where it is too short for any of it to be kept."""
    follow: Callable[[str], bytes] | None = None
    """What an answer adds after the prompt; None where that is not known."""
    estimate: int | None = None
    """Tokens, where they are not counted."""
    has_media: bool = False


class Keying:
    """The keys of one prompt, as far as they are known.

    While `run` works in a thread, the event loop may read every public field: `keys` is never changed, only
    replaced by a longer one. Setting `stop` ends `run` after the chunk at hand; `run` may be called again.
    """

    __slots__ = (
        "_node",
        "_path",
        "_plan",
        "_tail",
        "_trie",
        "_waiting",
        "affinity",
        "characters",
        "done",
        "keys",
        "pending",
        "stop",
        "tokens",
    )

    def __init__(self, trie: Trie, plan: Plan | None) -> None:
        self.keys: array[int] = array("Q")
        """One for each full block, from the start of the prompt."""
        self.tokens = 0
        """Prompt tokens known so far; when done, all of them; an estimate in bytes mode."""
        self.done = True
        self.pending = 0
        """Characters still to do."""
        self.characters = 0
        """Characters of the rendered prompt; in bytes mode, bytes of the canonical one."""
        self.affinity = 0
        """A stable hash of the prompt's first characters, 64 bits; 0 if there is nothing to hash."""
        self.stop = False
        self._trie = trie
        self._plan = plan
        self._path: list[Node] = []
        self._waiting: Chunk | None = None
        self._node: Node
        self._tail = b""
        """The tokens after the last full block of a prompt that has no `_node`, since it came whole."""
        if plan is not None:
            self._start(plan)

    @property
    def counts_exactly(self) -> bool:
        """Whether `tokens` is the engine's own count: nothing was estimated and nothing stands for media."""
        return self._plan is not None and self._plan.estimate is None and not self._plan.has_media

    @property
    def is_understood(self) -> bool:
        """Whether the prompt can be keyed at all."""
        return self._plan is not None

    def _start(self, plan: Plan) -> None:
        self.characters = plan.characters
        self.affinity = plan.affinity
        if plan.whole is not None:
            root = plan.root
            self.keys, self._tail = chain(root.tail + plan.whole, self._trie.block_size, root.last)
            exactly = root.tokens + len(plan.whole) // TOKEN_BYTES
            self.tokens = exactly if plan.estimate is None else plan.estimate
            plan.whole = b""  # see _finish
            return
        self._waiting = self._trie.walk(plan.root, plan.chunks, self._path)
        node = self._path[-1] if self._path else plan.root
        keys = array("Q", plan.root.keys)
        for known in self._path:
            keys.extend(known.keys)
        self._node = node
        self.pending = plan.characters - node.characters
        self.keys = keys
        self.tokens = node.tokens if plan.estimate is None else plan.estimate
        self.done = False
        if self._waiting is None:
            self._finish(plan)

    def run(self) -> None:
        """Do the rest of the work, and publish it as it goes."""
        plan = self._plan
        if plan is None or self.done:
            return
        fresh = array("Q")
        while not self.stop:
            chunk = self._waiting if self._waiting is not None else plan.chunks.take()
            self._waiting = None
            if chunk is None:
                self._publish(plan, fresh)
                self._trie.touch(self._path)
                self._finish(plan)
                return
            if len(chunk) >= plan.keep_from:
                self._node = self._trie.grow(self._node, chunk, plan.encode)
                self._path.append(self._node)
            else:
                self._node = self._trie.after(self._node, plan.encode(chunk), characters=len(chunk))
            fresh.extend(self._node.keys)
            self.pending = plan.characters - self._node.characters
            # Each publication copies all keys: often at first, then as they grow by an eighth.
            if len(fresh) * 8 >= len(self.keys):
                self._publish(plan, fresh)
                fresh = array("Q")
        self._publish(plan, fresh)

    def _publish(self, plan: Plan, fresh: "array[int]") -> None:
        if fresh:
            self.keys = self.keys + fresh
        if plan.estimate is None:
            self.tokens = self._node.tokens

    def _finish(self, plan: Plan) -> None:
        if plan.suffix:
            self._node = self._trie.after(self._node, plan.suffix)
            self._publish(plan, self._node.keys)
        self.pending = 0
        self.done = True
        plan.chunks = NO_CHUNKS  # a stream lasts minutes; its prompt's text need not
        self._path = []

    def followed_by(self, text: str) -> "array[int]":
        """Return the keys of the prompt and an answer; see `Keyer.extend`."""
        plan = self._plan
        if plan is None or plan.follow is None or not self.done or not text:
            return self.keys
        if plan.whole is None:
            node = self._node
        else:
            last = self.keys[-1] if self.keys else plan.root.last
            node = Node(b"", 0, self.keys, last, self._tail, self.tokens, self.characters)
        try:
            return self.keys + self._trie.after(node, plan.follow(text)).keys
        except UnicodeEncodeError:
            return self.keys
