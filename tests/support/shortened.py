"""The commands of the bench, as the documents give them, made short: the same with less of everything.

`shorter` adds options of `SHORTER` to a command's own words. What they replace is left out, so that two
commands which differ in nothing else are one. What a command promises to write is in `WRITES`.
"""

from typing import NamedTuple

SHORTER = {
    "admission": "--seeds 1 --seconds 8 --replicas 1 --profile h100-8b",
    "agreement": "--requests 12 --concurrency 2",
    "article": "--repeats 1 --requests 4",
    "breaks": "--requests 200 --seeds 1",
    "canary": "--seeds 1 --seconds 20 --rate 10 --replicas 2",
    "chaos": "--only aborts --connections 10 --requests 50",
    "compare": "",
    "demo": "--scale 0.02 --only random --port 0 --keep",
    "demo --random-control": "--random-control 1 --scale 0.05",
    "engine": "--port 0",
    "hop": "--cells small --rounds 1 --seconds 0.3 --ports PORTS",
    "load": "--duration 1 --warm-up 0.2 --cool-down 0.2",
    "micro": "--quick",
    "peers run": "--routers direct,warmroute --cases shared --repeats 1 --duration 1 --warm-up 0.2",
    "proxies": "--proxies 1 --replicas 1 --requests 16 --rate 20 --seeds 1",
    "real": "--duration 1 --warm-up 0.2 --repeats 1",
    "scale": "",
    "simulate": "--requests 40",
    "simulate --five": "--seeds 1 --scale 0.002",
    "simulate --trace": "--limit 20",
    "takeover": "--proxies 2 --replicas 1 --rate 5 --duration 3 --repeats 1",
    "trial": "--seconds 1",
    "warmup": "--blocks 2000 --replicas 1 --repeats 1",
    "watched": "--cell small --rounds 1 --seconds 0.4 --ports PORTS",
    "whatif": "--requests 20",
}
NAMED = {"admission", "agreement", "compare", "load", "peers", "real", "whatif"}
"""What cannot run without arguments, or has no parts but those that other commands name. Where a document
gives no more than its name, another one runs it."""
HERE = {"admission", "scale", "simulate", "whatif"}
"""What starts no process and keeps nothing: it runs in the suite's own."""
SERVES = {"engine", "demo --keep"}
"""What goes on until somebody ends it."""
WRITES = {
    "admission --json": ("--json", "", [""]),
    "agreement": ("--out", "bench/results", ["index-agreement.json", "index-agreement.md"]),
    "article": ("--out", "bench/out/article", ["article.json", "article.md"]),
    "breaks": ("--json", "bench/out/breaks.json", [""]),
    "chaos": ("--out", "bench/results/chaos.json", [""]),
    "demo": ("--out", "bench/out/demo", ["result.json", "overview.png"]),
    "demo --random-control": ("", "bench/results/random_control.json", [""]),
    "hop": ("--out", "bench/out/hop.json", [""]),
    "load": ("--out", "bench/out/load", ["result.json", "requests.jsonl", "summary.md", "report.html"]),
    "micro": ("--out", "bench/out/micro.json", [""]),
    "peers run": ("--out", "bench/out/peers", ["peers.json", "peers.md"]),
    "proxies": ("--out", "bench/results/proxies.json", [""]),
    "real": ("--out", "bench/results", ["vllm-cpu.json", "vllm-cpu.md"]),
    "simulate --json": ("--json", "", [""]),
    "simulate --markdown": ("--markdown", "", [""]),
    "takeover": ("--out", "bench/results/takeover.json", [""]),
    "trial": ("--json", "bench/out/trial/result.json", [""]),
    "warmup": ("--out", "bench/results/warmup.json", [""]),
    "watched": ("--out", "bench/out/watched.json", [""]),
    "whatif": ("--out", "bench/out/whatif", ["whatif.json"]),
}
"""By a command, or a command with an option: the option that says where, the usual place, the files there."""
VERDICTS = {
    "chaos",
    "canary",
    "agreement",
    "compare",
    "demo --random-control",
    "proxies",
    "takeover",
    "trial",
    "warmup",
    "watched",
}
"""What ends with 1 when a figure misses its target, which says nothing of so short a run on a busy machine.
Whatever it writes has to be there all the same, and nothing may be told on standard error."""


class Short(NamedTuple):
    """A command of the bench as the tests run it; `words` begin with the command's name."""

    name: str
    words: list[str]
    key: str
    """Of what is in `SHORTER`."""

    @property
    def serves(self) -> bool:
        """Whether it goes on until it is ended."""
        return _keys(self.words, SERVES) != []

    @property
    def statuses(self) -> set[int]:
        """Those it may end with."""
        return {0, 1} if self.key in VERDICTS else {0}

    def writes(self) -> list[str]:
        """The files that it promises."""
        found = []
        for key in _keys(self.words, WRITES):
            if key == "demo" and self.key != "demo":
                continue
            option, usual, files = WRITES[key]
            where = self.words[self.words.index(option) + 1] if option in self.words else usual
            found += [f"{where}/{file}".rstrip("/") for file in files]
        return found


def shorter(words: list[str]) -> Short:
    """A command of the bench, which begins with its name, with less of everything."""
    key = max(_keys(words, SHORTER), key=len)
    added = SHORTER[key].split()
    options = {word for word in added if word.startswith("--")}
    kept: list[str] = []
    replaced = False
    said = {(option, usual) for name, (option, usual, _) in WRITES.items() if name == key}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if (word, after) in said:  # what it would do anyway
            options.add(word)
        replaced = word in options or (replaced and not word.startswith("--"))
        if not replaced:
            kept.append(word)
    return Short(words[0], [*kept, *added], key)


def _keys(words: list[str], known: object) -> list[str]:
    """Those in `known` of which all words are there, the command's name first."""
    assert isinstance(known, (dict, set))
    return [key for key in known if key.split()[0] == words[0] and set(key.split()) <= set(words)]
