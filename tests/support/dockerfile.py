"""The stages of deploy/Dockerfile and their instructions."""

import re
from typing import NamedTuple

from tests.support.tools import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"


class Step(NamedTuple):
    """One instruction."""

    name: str
    text: str


def stages() -> dict[str, list[Step]]:
    """The stages by name, in order."""
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text()))
    found: dict[str, list[Step]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, text = line.partition(" ")
        if name == "FROM":
            found[text.rpartition(" AS ")[2]] = []
        if found:
            found[list(found)[-1]].append(Step(name, text.strip()))
    return found


STAGES = stages()
