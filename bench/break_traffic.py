"""Made-up requests with planted breaks among clean ones, to see what the break finder finds. Pure.

Clean traffic is what a fleet sees: applications with system prompts and tools of their own, questions with
names, dates and numbers in them, conversations that grow, documents that differ. Each planted kind is one
application's fault.
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

_SYLLABLES = "ba co di fu ga he lo mi nu pa re sa to ve wi zo".split()  # noqa: SIM905 - reads better
_NAMES = "Alice Bob Carol Dmitri Eve Farid Grace Hiro Ines Jonas Kofi Lena Mateo Nadia Omar Priya".split()  # noqa: SIM905
_SURNAMES = "Smith Okafor Garcia Novak Tanaka Haddad Larsen Mehta Rossi Weber".split()  # noqa: SIM905


class Author:
    """Writes texts that mean nothing."""

    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)

    def word(self) -> str:
        """A word."""
        return "".join(self.rng.choice(_SYLLABLES) for _ in range(self.rng.randint(1, 4)))

    def sentence(self, least: int = 6, most: int = 18) -> str:
        """A sentence."""
        words = [self.word() for _ in range(self.rng.randint(least, most))]
        if self.rng.random() < 0.15:
            words[-1] = str(self.rng.randint(1, 500))
        return " ".join(words).capitalize() + self.rng.choice("...?!")

    def text(self, sentences: int) -> str:
        """Paragraphs."""
        return "".join(
            self.sentence() + ("\n\n" if self.rng.random() < 0.2 else " ") for _ in range(sentences)
        ).strip()

    def tool(self) -> dict[str, Any]:
        """A function."""
        parameters = {self.word(): {"type": "string", "description": self.sentence()} for _ in range(3)}
        return {
            "type": "function",
            "function": {
                "name": f"{self.word()}_{self.word()}",
                "description": self.sentence(),
                "parameters": {"type": "object", "properties": parameters},
            },
        }

    def name(self) -> str:
        """Of a person."""
        return f"{self.rng.choice(_NAMES)} {self.rng.choice(_SURNAMES)}"

    def time(self) -> str:
        """A day and a time of it."""
        hour, minute, second = self.rng.randint(0, 23), self.rng.randint(0, 59), self.rng.randint(0, 59)
        return f"{self.date()}T{hour:02}:{minute:02}:{second:02}Z"

    def date(self) -> str:
        """A day."""
        return f"2026-{self.rng.randint(1, 12):02}-{self.rng.randint(1, 28):02}"

    def uuid(self) -> str:
        """An id."""
        digits = f"{self.rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def question(self) -> str:
        """What a user asks: names, days and numbers are clean there."""
        opening = self.rng.choice(
            (f"I am {self.name()}.", f"On {self.date()} I wrote.", f"Case {self.rng.random()}.")
        )
        return f"{opening} {self.text(self.rng.randint(1, 5))}"


def chat(system: str, user: str, **more: Any) -> dict[str, Any]:
    """A body."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "m", "messages": messages, **more}


class Clean:
    """Applications that do nothing wrong."""

    def __init__(self, seed: str, applications: int = 20) -> None:
        self.author = Author(f"{seed}/clean")
        self.rng = self.author.rng
        self.systems = [self.author.text(self.rng.randint(10, 60)) for _ in range(applications)]
        self.tools = [[self.author.tool() for _ in range(self.rng.randint(0, 6))] for _ in self.systems]
        self.documents = [self.author.text(8) for _ in range(200)]
        self.turns: list[list[dict[str, Any]]] = []

    def request(self) -> dict[str, Any]:
        """The next one."""
        at = self.rng.randrange(len(self.systems))
        system, author, kind = self.systems[at], self.author, self.rng.random()
        tools = {"tools": self.tools[at]} if self.tools[at] else {}
        if kind < 0.1:
            return {"model": "m", "prompt": f"{system}\n\n{author.question()}"}
        if kind < 0.2:  # documents sorted by id, as they should be
            chosen = sorted(self.rng.sample(range(len(self.documents)), 3))
            found = "\n\n".join(f"Document {at}:\n{self.documents[at]}" for at in chosen)
            return chat(system, f"{found}\n\n{author.question()}", **tools)
        if kind < 0.4 and self.turns:  # a conversation goes on
            at = self.rng.randrange(len(self.turns))
            turns = self.turns[at]
            turns += [
                {"role": "assistant", "content": author.text(3)},
                {"role": "user", "content": author.question()},
            ]
            return {"model": "m", "messages": list(turns)}
        body = chat(system, author.question(), **tools)
        if len(self.turns) < 50:
            self.turns.append(list(body["messages"]))
        return body


def _application(seed: str) -> tuple[Author, str, str, list[dict[str, Any]]]:
    author = Author(seed)
    return author, author.text(12), author.text(30), [author.tool() for _ in range(6)]


def _planted(kind: str, seed: str) -> Iterator[dict[str, Any]]:
    """One application whose requests part early, in one way."""
    author, opening, rest, tools = _application(f"{seed}/{kind}")
    rng = author.rng
    documents = [author.text(6) for _ in range(5)]
    counter = 0
    while True:
        counter += 1
        question = author.question()
        match kind:
            case "timestamp":
                yield chat(f"Current time: {author.time()}. {opening}\n{rest}", question)
            case "date":
                yield chat(f"{opening}\nToday is {author.date()}.\n{rest}", question)
            case "uuid":
                yield chat(f"{opening} Session {author.uuid()} is open. {rest}", question)
            case "counter":
                yield {"model": "m", "prompt": f"Request {counter} of today. {opening} {rest} {question}"}
            case "reordered tools":
                yield chat(f"{opening}\n{rest}", question, tools=rng.sample(tools, len(tools)))
            case "reordered documents":
                shuffled = "\n\n".join(rng.sample(documents, len(documents)))
                yield chat(opening, f"{shuffled}\n\n{question}")
            case "user name":
                yield chat(
                    f"You are talking to {author.name()}, who is a customer. {opening} {rest}", question
                )
            case "whitespace":
                space = rng.choice(("\n", "\n\n", " \n", "\r\n"))
                yield chat(f"{opening}{space}{rest}", question)
            case _:
                raise ValueError(f"no break of kind {kind!r} is planted here")


PLANTED: dict[str, str] = {
    "timestamp": "messages[0].content",
    "date": "messages[0].content",
    "uuid": "messages[0].content",
    "counter": "prompt",
    "reordered tools": "tools",
    "reordered documents": "messages[1].content",
    "user name": "messages[0].content",
    "whitespace": "messages[0].content",
}
"""Each kind, and where it is planted."""


def traffic(requests: int, seed: str, *, each: int = 0) -> Iterator[bytes]:
    """Bodies: `requests` in all, of which `each` of every planted kind, anywhere among them."""
    clean = Clean(seed)
    makers: list[Callable[[], dict[str, Any]]] = []
    for kind in PLANTED:
        source = _planted(kind, seed)
        makers += [source.__next__] * each
    makers += [clean.request] * (requests - len(makers))
    Random(f"{seed}/order").shuffle(makers)
    for make in makers:
        yield json.dumps(make()).encode()
