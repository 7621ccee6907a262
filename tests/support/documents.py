"""The commands that the documents tell a person to run."""

import re
import shlex
from typing import NamedTuple

from tests.support.tools import ROOT

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    "deploy/FAQ.md",
    "deploy/README.md",
    "deploy/SCALE.md",
    "policies/README.md",
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:(?:\.venv/bin/)?warmroute|make|python -m bench|pip) [^`\n]+)`(?!`)")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"[a-z-]+: ")


class Command(NamedTuple):
    """One simple command: what a pipe or && leads to is another."""

    document: str
    words: list[str]
    variables: dict[str, str]

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2] if self.words else ""


def commands(text: str, document: str = "") -> list[Command]:
    """Those of its shell blocks, and those in backticks that begin with a command of ours."""
    lines: list[str] = []
    for language, block in _FENCE.findall(text):
        if language in ("", "sh") and not _HEADER.match(block):
            lines += block.replace("\\\n", " ").splitlines()
    plain = _FENCE.sub("", text)
    return [each for line in (*lines, *_INLINE.findall(plain)) for each in _split(line, document)]


def every_command() -> list[Command]:
    """Of all documents there are."""
    return [
        command
        for name in DOCUMENTS
        if (ROOT / name).exists()
        for command in commands((ROOT / name).read_text(), name)
    ]


def _split(line: str, document: str) -> list[Command]:
    lexer = shlex.shlex(
        line.replace("$(", " ; ").replace("(umask", "; umask"), posix=True, punctuation_chars=";|&<>"
    )
    lexer.whitespace_split = True
    found: list[Command] = []
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&"):
            variables = {}
            while words and (given := _ASSIGNMENT.fullmatch(words[0])):
                variables[given[1]] = given[2]
                words.pop(0)
            if words or variables:
                found.append(Command(document, [each.rstrip(")") for each in words], variables))
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    return found
