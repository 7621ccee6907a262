"""The simulated replica: continuous batching over a real block cache, with time passed in.

Pure and deterministic: no clock, no I/O, no randomness. `bench.engine` drives it in real time,
`bench.simulate` on a virtual clock. It answers *when* tokens come and *how many* prompt tokens were cached,
as vLLM's scheduler would; what the tokens say is not its business.

One step at a time, like the engine: running sequences decode one token each, prefills take what is left of
`max_batched_tokens` in the order of admission (chunked prefill), and whoever waits is admitted while there
are sequences, tokens and blocks left: in the order of arrival, or by priority. As in vLLM, priority says who
is admitted next and no more: a prefill that has begun takes its tokens before anybody new. A block can be
reused from the moment its computation is scheduled, so requests that arrive together share a prefix. A hit
never covers the last prompt token.

Where it is simpler than vLLM: a sequence reserves room for its whole output when it is admitted, so nothing
is ever preempted; a cancelled sequence leaves at the end of the step it is in.

Invariants: blocks pinned and blocks reserved never exceed the cache; every submitted request ends in
exactly one `done` or by `cancel`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil

from bench.block_cache import BlockCache
from bench.engine_events import Change, Source
from bench.engine_sequence import EngineSequence, Step, TokenEvent
from bench.profiles import PROFILES, EngineSpec, profile

__all__ = ["PROFILES", "EngineModel", "EngineSpec", "TokenEvent", "profile"]


class EngineModel:
    """One replica. Calls must not go back in time; `submit` may be late by less than the arrival delay."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        every_token: bool = True,
        changed: Callable[[list[Change]], None] | None = None,
    ) -> None:
        """`every_token=False` leaves `token` events out and runs quiet stretches of decoding in one go.

        `changed` is told at the end of each step what that did to the cache, if it did anything.
        """
        self.spec = spec
        self.every_token = every_token
        self.cache = BlockCache(spec.blocks)
        self._changed = changed
        self._changes: list[Change] = []
        if changed is not None:
            self.cache.evicted = []
        self.prompt_tokens = 0
        """Prompt tokens of requests admitted so far; the denominator of `cached_tokens`."""
        self.cached_tokens = 0
        self.output_tokens = 0
        self._arriving: list[tuple[float, int, EngineSequence]] = []
        self._waiting: deque[EngineSequence] = deque()
        self._running: list[EngineSequence] = []
        self._sequences: dict[str, EngineSequence] = {}
        self._step: Step | None = None
        self._free_at = float("-inf")
        """When the last step ended: a request handed over late cannot start before it."""
        self._reserved = 0
        self._submitted = 0

    # ---- what a client does ------------------------------------------------------------------------------

    def submit(
        self,
        now: float,
        request_id: str,
        keys: Sequence[int],
        prompt_tokens: int,
        output_tokens: int,
        source: Source | None = None,
        priority: int = 0,
    ) -> None:
        """Hand a request over at `now`.

        `keys` are the chained keys of its full blocks: of the prompt, and after them of the output, as far as
        the caller knows it. Blocks without a key take room but are never found again. `output_tokens=0` is a
        request that only reads its prompt (an embedding). `source` comes back with the changes it makes. Low
        values of `priority` go first, where the engine orders by it.
        """
        if prompt_tokens < 1 or output_tokens < 0:
            raise ValueError("a request has at least one prompt token and no negative output")
        if request_id in self._sequences:
            raise ValueError(f"request id {request_id!r} is in use")
        sequence = EngineSequence(request_id, keys, prompt_tokens, output_tokens, source, priority)
        if self._blocks_for(sequence.final_tokens) > self.spec.blocks:
            raise ValueError(f"{sequence.final_tokens} tokens do not fit into {self.spec.cache_tokens}")
        self._sequences[request_id] = sequence
        self._submitted += 1
        arrival = now + self.spec.arrival_delay(prompt_tokens)
        heappush(self._arriving, (arrival, self._submitted, sequence))
        self._cut_short(arrival)

    def cancel(self, now: float, request_id: str) -> None:
        """The client has gone: no more events; blocks and slot are free at the end of the step it is in."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        sequence.cancelled = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._cut_short(now)

    # ---- time --------------------------------------------------------------------------------------------

    def next_event(self) -> float | None:
        """When something will next happen by itself, or None if the replica is idle."""
        if self._step is not None:
            return self._step.end
        return max(self._arriving[0][0], self._free_at) if self._arriving else None

    def advance(self, now: float) -> list[TokenEvent]:
        """Everything that happened up to and at `now`, in order."""
        events: list[TokenEvent] = []
        while True:
            at = self.next_event()
            if at is None or at > now:
                return events
            if self._step is not None:
                self._finish(self._step, events)
            self._start_step(at)

    # ---- what its metrics say ----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that are not in the batch yet."""
        return len(self._sequences) - sum(not s.cancelled for s in self._running)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running sequences hold, 0 to 1; what is merely cached does not count."""
        return self.cache.pinned / self.cache.blocks

    def reset_cache(self) -> bool:
        """Forget every cached block; False, and nothing done, while sequences run."""
        return self.cache.clear()

    # ---- the scheduler -----------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)

    def _start_step(self, now: float) -> None:
        """Decide what the step that starts now does, and how long it takes."""
        while self._arriving and self._arriving[0][0] <= now:
            sequence = heappop(self._arriving)[2]
            if not sequence.cancelled:
                self._wait(sequence)
        budget = self.spec.max_batched_tokens
        longest = self.spec.longest_chunk or budget
        decoding = [s for s in self._running if s.computed >= s.prompt_tokens]
        for sequence in decoding:
            self._compute(sequence, 1)
        budget -= len(decoding)
        prefilled: list[EngineSequence] = []
        prefill_tokens = 0
        for sequence in self._running:
            chunk = min(sequence.prompt_tokens - sequence.computed, budget, longest)
            if chunk > 0:
                self._prefill(sequence, chunk, prefilled)
                prefill_tokens += chunk
                budget -= chunk
        while self._waiting and budget > 0 and len(self._running) < self.spec.max_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                break
            self._waiting.popleft()
            chunk = min(sequence.prompt_tokens - sequence.computed, budget, longest)
            self._prefill(sequence, chunk, prefilled)
            prefill_tokens += chunk
            budget -= chunk
        if not decoding and not prefill_tokens:
            self._step = None
            return
        seconds = self.spec.step_time(len(decoding), prefill_tokens)
        self._step = Step(now, seconds, 1, prefilled, decoding)
        admitting = self._waiting and len(self._running) < self.spec.max_seqs
        if not self.every_token and not prefill_tokens and not admitting:
            self._step.count = min(s.output_tokens - s.produced for s in decoding)
            if self._arriving:
                self._cut_short(self._arriving[0][0])

    def _wait(self, sequence: EngineSequence) -> None:
        """Queue it: behind all others, or behind those that are as urgent."""
        waiting, place = self._waiting, len(self._waiting)
        if self.spec.by_priority:
            while place and waiting[place - 1].priority > sequence.priority:
                place -= 1
        waiting.insert(place, sequence)

    def _admit(self, sequence: EngineSequence) -> bool:
        """Match it against the cache and reserve its room; False if there is none yet."""
        size = self.spec.block_size
        hit = self.cache.match(sequence.keys, (sequence.prompt_tokens - 1) // size)
        hit_keys = sequence.keys[:hit]
        new = self._blocks_for(sequence.final_tokens) - hit
        if self.cache.pinned + self._reserved + self.cache.unpinned(hit_keys) + new > self.spec.blocks:
            return False
        for key in hit_keys:
            self.cache.pin(key)
            sequence.blocks.append(key)
        self._reserved += new
        sequence.cached = sequence.computed = hit * size
        self.prompt_tokens += sequence.prompt_tokens
        self.cached_tokens += sequence.cached
        self._running.append(sequence)
        return True

    def _prefill(self, sequence: EngineSequence, chunk: int, prefilled: list[EngineSequence]) -> None:
        self._compute(sequence, chunk)
        if sequence.computed >= sequence.prompt_tokens:
            prefilled.append(sequence)

    def _compute(self, sequence: EngineSequence, tokens: int) -> None:
        """Take the blocks that the next `tokens` tokens go to; full ones can be shared from here on."""
        size, held = self.spec.block_size, sequence.blocks
        sequence.computed += tokens
        full = min(sequence.computed // size, len(sequence.keys))
        first = full
        for index in range(max(0, len(held) - 1), full):
            if index == len(held):
                self._reserved -= 1
            elif held[index] is None:
                held.pop()
                self.cache.release_anonymous()
            else:
                continue
            if self.cache.pin(sequence.keys[index]):
                # No block is cached without its parent, so those after a new one are new too.
                first = min(first, index)
            held.append(sequence.keys[index])
        while len(held) < self._blocks_for(sequence.computed):
            self._reserved -= 1
            self.cache.pin_anonymous()
            held.append(None)
        removed = self.cache.evicted
        if removed is not None and (removed or first < full):
            self.cache.evicted = []
            self._changes.append(Change(removed, sequence.keys, first, full, sequence.source))

    def _finish(self, step: Step, events: list[TokenEvent]) -> None:
        """The step is over: its tokens are out, whoever has all of them leaves."""
        self._step = None
        at = self._free_at = step.end
        for sequence in step.decoding:
            if step.count > 1:
                self._compute(sequence, step.count - 1)
            self._produce(sequence, step.count, at, events)
        for sequence in step.prefilled:
            self._produce(sequence, min(1, sequence.output_tokens), at, events)
        if self._changed is not None and self._changes:
            changes, self._changes = self._changes, []
            self._changed(changes)
        leaving = [s for s in self._running if s.cancelled or self._is_complete(s)]
        if leaving:
            self._running = [s for s in self._running if not s.cancelled and not self._is_complete(s)]
            for sequence in leaving:
                self._release(sequence)

    def _is_complete(self, sequence: EngineSequence) -> bool:
        return sequence.computed >= sequence.prompt_tokens and sequence.produced >= sequence.output_tokens

    def _produce(self, sequence: EngineSequence, tokens: int, at: float, events: list[TokenEvent]) -> None:
        if sequence.cancelled:
            return
        request_id, cached = sequence.request_id, sequence.cached
        self.output_tokens += tokens
        if tokens and sequence.produced == 0:
            events.append(TokenEvent(request_id, at, "first", cached))
        elif tokens and self.every_token:
            events.append(TokenEvent(request_id, at, "token", cached))
        sequence.produced += tokens
        if sequence.produced >= sequence.output_tokens:
            events.append(TokenEvent(request_id, at, "done", cached))
            del self._sequences[request_id]

    def _release(self, sequence: EngineSequence) -> None:
        self._reserved -= self._blocks_for(sequence.final_tokens) - len(sequence.blocks)
        for key in reversed(sequence.blocks):
            if key is None:
                self.cache.release_anonymous()
            else:
                self.cache.release(key)
        sequence.blocks.clear()

    def _cut_short(self, now: float) -> None:
        """End a repeated step at its first boundary at or after `now`."""
        step = self._step
        if step is not None and step.count > 1:
            repeats = max(1, ceil((now - step.start) / step.seconds))
            step.count = min(step.count, repeats)
