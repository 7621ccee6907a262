"""From an engine's cache to the indexes of two proxies, over a channel that loses, repeats and reorders.

One proxy follows the replica's feed, the other follows what the first writes to the shared log; either may
die or lose its claim, and the other goes on. At any time the index of the proxy that follows the feed is what
follows from the messages that it has applied, no more and no less (`Known`), and those are one process's,
each once, in order and without a gap since it last said that it has lost something. What Redis holds is the
same of the last message committed, and the other proxy's index is what Redis held at the entry read last.
When nothing is on its way any more, both claim what the engine holds: all of it, unless messages were lost
that nobody could have replayed.
"""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bench.engine_events import DIALECTS
from tests.support.engine_model import Engine, Message, Path, keys, run
from tests.support.event_path import JOINED, REPLICA, Shared
from tests.support.event_proxy import Proxy

prompts = st.lists(st.sampled_from((1, 1, 2)), min_size=1, max_size=5).map(tuple)
which = st.integers(0, 3)
LASTING_S = 100.0
"""Longer than any cooldown."""


class EventsToIndex(RuleBasedStateMachine):
    @initialize(
        dialect=st.sampled_from(DIALECTS),
        digests=st.booleans(),
        counted=st.booleans(),
        lasting=st.sampled_from((True, True, False)),
        room=st.sampled_from((6, 12)),
        history=st.sampled_from((3, 1000)),
        careful=st.booleans(),
    )
    def begin(self, dialect, digests, counted, lasting, room, history, careful):
        self.now = 1000.0
        digests &= dialect.startswith("vllm")
        self.engine = Engine(dialect, counted=counted, room=room, history=history, bytes_hashes=digests)
        self.lasting = lasting
        self.careful = careful and history == 1000
        """Whether everything lost can be replayed in the end."""
        self.shared = Shared()
        self.paths: dict[Path, None] = {}
        self.born = 0
        self.proxies = [self.proxy(), self.proxy()]
        self.proxies[0].take_claim()

    def proxy(self) -> Proxy:
        self.born += 1
        return Proxy(f"p{self.born}", self.engine, self.shared, lambda: self.now, lasting=self.lasting)

    @property
    def following(self):
        return next((proxy.following for proxy in self.proxies if proxy.following is not None), None)

    @property
    def ingester(self) -> Proxy:
        return next(proxy for proxy in self.proxies if proxy.claim is not None)

    # ---- the engine ----

    def publish(self, message: Message) -> None:
        line = self.following.line
        if line.open_:
            line.wire.append(message)

    @rule(
        paths=st.lists(prompts, min_size=1, max_size=3),
        cleared=st.sampled_from((False,) * 7 + (True,)),
        again=st.booleans(),
    )
    def serve(self, paths, cleared, again):
        self.publish(self.engine.step(paths, cleared=cleared, again=again))
        self.paths |= {path[:end]: None for path in paths for end in range(1, len(path) + 1)}

    @precondition(lambda self: self.engine.copies)
    @rule(at=st.integers(0, 30))
    def drop(self, at):
        held = sorted(self.engine.copies)
        self.publish(self.engine.drop(held[at % len(held)]))

    def babble(self):
        self.publish(self.engine.babble())

    @rule(lost=st.booleans(), dropped=st.booleans(), seen=st.booleans(), busy=st.integers(0, 3))
    def restart(self, lost, dropped, seen, busy):
        """What the old process has sent comes before the new one can be asked: to start takes longer.

        `seen`: by the other proxy, at once. `busy`: steps of the new process before anybody is connected.
        """
        for proxy in self.proxies:
            if proxy.claim is None:  # two restarts take longer than a probe
                proxy.probe()
        self.engine.restart()
        for _ in range(busy):
            self.engine.step([(1,)])
        for proxy in self.proxies:
            if seen and proxy.claim is None:
                proxy.probe()
        line = self.following.line
        if line.open_:
            line.wire = [JOINED] if lost else [*line.wire, JOINED]
            if dropped:
                self.following.dropped()

    # ---- the channel ----

    @precondition(lambda self: self.following.line.wire)
    @rule(at=which, kept=st.booleans())
    def deliver(self, at, kept):
        following, line = self.following, self.following.line
        message = line.wire[at % line.upcoming if line.upcoming else 0]
        if not (kept and line.upcoming):
            line.wire.remove(message)
        if message is JOINED:
            following.joined()
        else:
            following.live(message.seq, message.payload)

    @precondition(lambda self: self.following.line.upcoming)
    @rule(at=which)
    def lose(self, at):
        line = self.following.line
        line.wire.pop(at % line.upcoming)

    @precondition(lambda self: self.following.line.asked is not None)
    @rule(up_to=st.integers(0, 5), fails=st.booleans())
    def replay(self, up_to, fails):
        """The publisher answers when it is asked; its answer comes by and by, and to its end or not."""
        following, line = self.following, self.following.line
        fails &= not self.careful
        if line.answer is None:
            fails |= JOINED in line.wire
            line.answer = [] if fails else [each for each in self.engine.history if each.seq >= line.asked]
        answer = line.answer
        for _ in range(up_to):
            if not answer or line.answer is not answer:
                break
            message = answer.pop(0)
            following.replayed(message.seq, message.payload)
        if line.answer is answer and (fails or not answer):
            whole = not (answer or fails)
            line.asked = line.answer = None
            following.replay_over(whole=whole)

    # ---- the proxies ----

    @precondition(lambda self: any(proxy.tasks for proxy in self.proxies))
    @rule(at=which, told=st.booleans())
    def answer(self, at, told):
        proxy = next(proxy for proxy in self.proxies if proxy.tasks)
        proxy.answer(at, told=told and JOINED not in self.following.line.wire)

    @precondition(lambda self: any(proxy.turns for proxy in self.proxies))
    @rule(times=st.integers(1, 4))
    def turn(self, times):
        for proxy in self.proxies:
            for _ in range(times):
                if proxy.turns:
                    proxy.turn()

    @rule(at=st.integers(0, 1))
    def probe(self, at):
        if JOINED not in self.following.line.wire:
            self.proxies[at].probe()

    def time_passes(self, seconds):
        self.now += seconds
        self.following.tick()

    def flushed(self):
        """Somebody empties the engine's cache, and the proxy that follows it knows before its next step."""
        self.following.flushed()
        self.serve([], cleared=True, again=False)

    @rule(kind=st.integers(0, 6), at=st.integers(0, 1))
    def trouble(self, kind, at):
        """What is rare, so that the rest has time to become complicated."""
        if kind == 0 and not self.careful:
            self.babble()
        elif kind == 1:
            self.time_passes((1.0, LASTING_S)[at])
        elif kind == 2:
            self.flushed()
        elif kind == 3:
            self.following.resync("a test")
        elif kind == 4:
            self.shared.row = None
            self.ingester.rewrite()
        elif kind == 5:
            self.proxies[at].lose_track()

    @rule(times=st.integers(1, 30), shared=st.booleans())
    def go_on(self, times, shared):
        """All is well for a while."""
        for _ in range(times):
            if not self.arrive():
                break
            self.the_index_is_what_was_heard()
        if shared:
            self.share()

    @rule()
    def write(self):
        self.ingester.write()

    @rule(times=st.integers(1, 4))
    def hear(self, times):
        for proxy in self.proxies:
            for _ in range(times):
                proxy.hear()

    @rule(dies=st.booleans(), written=st.booleans())
    def take_over(self, dies, written):
        old = self.ingester
        new = next(proxy for proxy in self.proxies if proxy is not old)
        if written:
            old.write()
        if dies:
            old.die()
            self.proxies = [self.proxy(), new]
        else:
            old.lose_claim()
        new.take_claim()

    # ---- what must be true ----

    @invariant()
    def the_index_is_what_was_heard(self):
        following = self.following if hasattr(self, "proxies") else None
        if following is None:
            return
        proxy, known = following.proxy, following.known
        self.agrees(proxy, {keys(path)[-1] for path in known.keyed})
        assert not known.keyed or known.process >= proxy.process or not self.lasting

    @invariant()
    def redis_has_what_was_heard(self):
        row = self.shared.row if hasattr(self, "shared") else None
        if row is None:
            return
        assert row.blocks == {keys(path)[-1] for path in row.known.keyed}
        assert len(row.handles) == len(row.blocks)
        other = next(proxy for proxy in self.proxies if proxy.claim is None)
        if other.caught_up and other.at >= other.read_at:
            started = float(row.epoch.partition("+")[0]) if self.lasting else 0.0
            if started in other.ended:
                self.agrees(other, other.left)
            elif all(ended < started for ended in other.ended):
                self.agrees(other, row.blocks)
                assert other.index.mode(REPLICA) == row.mode

    def agrees(self, proxy: Proxy, told: set[int]) -> None:
        index = proxy.index
        assert index.confirmed_blocks(REPLICA) == len(told)
        for path in self.paths:
            assert index._confirmed.holds(REPLICA, keys(path)[-1]) == (keys(path)[-1] in told)

    @precondition(lambda self: self.paths)
    @rule(at=st.integers(0, 100))
    def match(self, at):
        path = list(self.paths)[at % len(self.paths)]
        self.claims(self.following.proxy, self.following.known.keyed, path)

    def claims(self, proxy: Proxy, held, path: Path) -> None:
        depth = run(held, path)
        assert proxy.index.match(keys(path)) == ({REPLICA: depth} if depth else {})
        assert proxy.index.match(array("Q", keys(path))) == ({REPLICA: depth} if depth else {})

    def arrive(self) -> bool:
        """Let the next of what is under way arrive; False if nothing is."""
        line = self.following.line
        if any(proxy.turns for proxy in self.proxies):
            self.turn(1)
        elif line.asked is not None:
            self.replay(5, fails=False)
        elif line.wire:
            self.deliver(0, kept=False)
        elif any(proxy.tasks for proxy in self.proxies):
            self.answer(0, told=True)
        else:
            return False
        return True

    def share(self) -> None:
        self.write()
        if self.shared.row is not None and not self.following.closed:
            assert self.shared.row.mode == self.following.standing.mode
        while not all(proxy.caught_up for proxy in self.proxies):
            self.hear(1)
            self.redis_has_what_was_heard()

    def settle(self) -> None:
        """Let everything arrive, nothing more being lost."""
        for _ in range(2000):
            if not self.arrive():
                break
            self.the_index_is_what_was_heard()
        else:
            raise AssertionError("it never comes to rest")
        self.share()

    def teardown(self):
        if not hasattr(self, "proxies"):
            return
        self.settle()
        for at in range(2):
            self.probe(at)
        # The last message comes twice, in case that its first time is when it becomes known that all is lost.
        for _ in range(3):
            self.serve([(1, 2, 1)], cleared=False, again=False)
            self.settle()
        self.time_passes(LASTING_S)
        self.settle()
        known, engine = self.following.known, self.engine
        held = set(+engine.copies)
        assert (known.process, known.last) == (engine.process, engine.seq - 1)
        assert known.keyed == held if known.whole else known.keyed <= held
        assert known.whole or not self.careful
        assert not known.mixed
        self.redis_has_what_was_heard()
        for proxy in self.proxies:
            assert proxy.index.mode(REPLICA) == "events"
            for path in self.paths:
                self.claims(proxy, held if known.whole else known.keyed, path)
        for proxy in self.proxies:
            proxy.die()


TestEventsToIndex = EventsToIndex.TestCase
TestEventsToIndex.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
