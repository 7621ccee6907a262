"""What it costs the hop that somebody looks: `python -m bench watched`.

Three figures of CPU a request at full load, as `bench hop` takes them: with nothing that looks at traffic
(`bare`), as the proxy runs by default (`usual`), and with dashboards open on top of that (`watched`). Each
dashboard asks as the page does: the live stream, and the other parts every so often. Rounds alternate, and
what is reported is the median of the differences within a round, so that a machine that slows down between
rounds does not count. Exit status 1 if watched costs more than `--most` per cent above bare.
"""

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import hop

ASKED = {
    "requests?limit=12": 2.0,
    "canary": 2.0,
    "prefixes": 5.0,
    "savings": 5.0,
    "shadow": 5.0,
    "breaks": 10.0,
}
"""What a page asks for beside the stream, and after how many seconds again."""
NAMES = ("bare", "usual", "watched")


class Dashboard:
    """One open page: reads, and draws nothing."""

    def __init__(self, port: int) -> None:
        self.frames = 0
        self.open = threading.Event()
        self._port = port
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._follow), threading.Thread(target=self._ask)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Leave."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _follow(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET", "/admin/live")
        stream = connection.getresponse()
        while not self._ended.is_set():
            if stream.readline().startswith(b"data: "):
                self.frames += 1
                self.open.set()
        connection.close()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        due = dict.fromkeys(ASKED, 0.0)
        while not self._ended.wait(0.1):
            for path, seconds in ASKED.items():
                if time.monotonic() >= due[path]:
                    due[path] = time.monotonic() + seconds
                    connection.request("GET", f"/admin/{path}")
                    connection.getresponse().read()
        connection.close()


@contextmanager
def dashboards(count: int, port: int) -> Iterator[list[Dashboard]]:
    """So many pages, each of which shows something."""
    pages = [Dashboard(port) for _ in range(count)]
    try:
        for page in pages:
            page.open.wait(30)
        yield pages
    finally:
        for page in pages:
            page.close()


def cost(tools: Path, pid: int, port: int, cell: str, seconds: float) -> float:
    """CPU microseconds a request; a chunk where answers are streamed."""
    before = hop.cpu_seconds(pid)
    row = hop.drive(tools, port, f"{hop.CELLS[cell]} -w 0.7 -t {seconds}")
    return (hop.cpu_seconds(pid) - before) / (row.get("evs") or row["done"]) * 1e6


def measure(tools: Path, commands: dict[str, str], options: argparse.Namespace) -> dict[str, float]:
    """One round."""
    found: dict[str, float] = {}
    for name, command in commands.items():
        process = hop.start(command)
        try:
            hop.wait_ready(process, options.ports.proxy)
            of = partial(cost, tools, process.pid, options.ports.proxy, options.cell)
            of(1.0)  # what is done once is done
            found[name] = of(options.seconds)
            if name == "usual":
                with dashboards(options.dashboards, options.ports.proxy) as pages:
                    found["watched"] = of(options.seconds)
                if not all(page.frames >= options.seconds / 2 for page in pages):
                    sys.exit("the dashboards were not told what happens")
        finally:
            hop.stop(process)
    return found


def main(argv: list[str]) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench watched",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cell", default="8k", choices=sorted(hop.CELLS), help="kind of load")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured, three times a round")
    parser.add_argument("--dashboards", type=int, default=1, help="open at once")
    parser.add_argument("--bare", default="--breaks.per-second 0", help="flags that turn off what looks")
    parser.add_argument("--most", type=float, default=3.0, help="per cent that it may cost")
    hop.Ports.add(parser)
    parser.add_argument("--tokenizer", type=Path, default=hop.HERE / "data" / "tokenizer")
    parser.add_argument("--out", type=Path, default=Path("bench/out/watched.json"))
    options = parser.parse_args(argv)
    usual = hop.own(sys.executable, options.tokenizer, options.ports)["warmroute-exact"]
    commands = {"bare": f"{usual} {options.bare}", "usual": usual}
    with hop.replicas(options.ports) as tools:
        rounds = [measure(tools, commands, options) for _ in range(options.rounds)]
    unit = "chunk" if options.cell == "stream" else "request"
    more: dict[str, float] = {}
    for name in NAMES:
        more[name] = statistics.median(100 * (each[name] / each["bare"] - 1) for each in rounds)
        figure = statistics.median(each[name] for each in rounds)
        print(f"{name:8} {figure:8.1f} us of CPU a {unit}, {more[name]:+5.1f} %")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m bench watched {' '.join(argv)}".strip()
    options.out.write_text(json.dumps({"command": command, "more": more, "rounds": rounds}, indent=1) + "\n")
    print(f"wrote {options.out}")
    return int(more["watched"] > options.most)
