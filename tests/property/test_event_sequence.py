"""A sequencer between a publisher that restarts and a channel that loses, repeats and reorders.

The model: what was applied since the last step that forgets everything is one process's messages, in order
and without a gap, from 0 on unless the sequencer has said `Stale`; and once everything has been delivered and
answered, it ends with the publisher's last message.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.index.sequence import Apply, Check, Replay, Restarted, Sequencer, Stale

RECONNECTED = (-1, b"")


class Feed(RuleBasedStateMachine):
    @initialize(history=st.sampled_from((3, 1000)), room=st.sampled_from((2, 1000)))
    def begin(self, history: int, room: int):
        self.sequencer = Sequencer(most_messages=room)
        self.epoch = 0
        self.seq = 0
        self.history: deque = deque(maxlen=history)
        self.wire: list = []
        self.applied: list[tuple[int, int]] = []
        self.whole = True
        self.asked: int | None = None
        self.answer: list | None = None
        self.check = False
        self.known_epoch = 0
        self.take(self.sequencer.resync())

    def take(self, steps: list):
        for step in steps:
            match step:
                case Apply(seq, payload):
                    epoch, number = payload.split()[:2]
                    assert int(number) == seq
                    self.applied.append((int(epoch), seq))
                case Restarted():
                    self.applied, self.whole = [], True
                case Stale():
                    self.applied, self.whole = [], False
                case Replay(start):
                    self.asked, self.answer = start, None
                case Check():
                    self.check = True

    @invariant()
    def in_order(self):
        applied = getattr(self, "applied", [])
        if applied:
            epoch, first = applied[0]
            assert applied == [(epoch, seq) for seq in range(first, first + len(applied))]
            assert first == 0 or not self.whole

    @rule(times=st.integers(1, 4))
    def publish(self, times: int):
        for _ in range(times):
            message = (self.seq, b"%d %d" % (self.epoch, self.seq))
            self.history.append(message)
            self.wire.append(message)
            self.seq += 1

    @rule(lost=st.booleans())
    def restart(self, lost: bool):
        """A connection that ends loses what is under way, or not; then there is another one.

        What the old process has sent comes before the new one can be asked anything: to start takes longer.
        """
        self.epoch += 1
        self.seq = 0
        self.history.clear()
        self.wire = [RECONNECTED] if lost else [*self.wire, RECONNECTED]

    def upcoming(self) -> int:
        """How many messages may overtake each other: those of one connection."""
        return self.wire.index(RECONNECTED) if RECONNECTED in self.wire else len(self.wire)

    @precondition(lambda self: self.wire)
    @rule(at=st.integers(0, 3), kept=st.booleans())
    def deliver(self, at: int, kept: bool):
        """The next message or a later one; what is kept comes again."""
        upcoming = self.upcoming()
        message = self.wire[at % upcoming if upcoming else 0]
        if not (kept and upcoming):
            self.wire.remove(message)
        if message is RECONNECTED:
            self.take(self.sequencer.resync())
        else:
            self.take(self.sequencer.live(*message))

    @precondition(lambda self: self.upcoming())
    @rule(at=st.integers(0, 3))
    def lose(self, at: int):
        self.wire.pop(at % self.upcoming())

    @precondition(lambda self: self.asked is not None)
    @rule(up_to=st.integers(0, 5), fails=st.booleans())
    def replay(self, up_to: int, fails: bool):
        """The publisher answers when it is asked; its answer comes by and by, and to its end or not."""
        if self.answer is None:
            fails |= RECONNECTED in self.wire
            self.answer = [] if fails else [message for message in self.history if message[0] >= self.asked]
        for _ in range(up_to):
            asked, answer = self.asked, self.answer
            if not answer:
                break
            self.take(self.sequencer.replayed(*answer.pop(0)))
            if self.answer is not answer or self.asked != asked:
                return  # another replay has been asked for
        if fails or not self.answer:
            failed = bool(self.answer) or fails
            self.asked = self.answer = None
            self.take(self.sequencer.replay_failed() if failed else self.sequencer.replay_ended())

    @rule()
    def replay_that_nobody_awaits(self):
        if self.asked is None:
            for message in self.history:
                assert self.sequencer.replayed(*message) == []
            assert self.sequencer.replay_ended() == []

    @precondition(lambda self: self.check)
    @rule(told=st.booleans())
    def answer_check(self, told: bool):
        self.check = False
        told &= RECONNECTED not in self.wire
        restarted = self.epoch != self.known_epoch if told else None
        if told:
            self.known_epoch = self.epoch
        self.take(self.sequencer.checked(restarted=restarted))

    def teardown(self):
        if not hasattr(self, "sequencer"):
            return
        # The last message comes twice, in case that its first time is when it becomes known that all is lost.
        for _ in range(3):
            self.publish(1)
            for _ in range(3000):
                if self.asked is not None:
                    self.replay(5, fails=False)
                elif self.check:
                    self.answer_check(told=True)
                elif self.wire:
                    self.deliver(0, kept=False)
                else:
                    break
                self.in_order()
            assert self.asked is None
            assert not self.check
        expected = [(self.epoch, seq) for seq in range(self.seq)]
        assert self.applied == (expected if self.whole else expected[-len(self.applied) :])
        assert self.applied


TestFeed = Feed.TestCase
TestFeed.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
