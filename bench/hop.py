"""What the hop costs in CPU: this proxy, and any other, each on a core of its own.

    python -m bench hop                       this proxy, keyed by text and with an exact tokenizer
    python -m bench hop other='COMMAND' ...   beside it, proxies that listen on 127.0.0.1:8100 in front of
                                              127.0.0.1:9001 to 9004 (or see --ports)

The proxies take turns round by round, pinned to core 0; replicas and load, both in C, are pinned to core 1.
Reported is the median over rounds of CPU microseconds a request (user and system, of the proxy's process
tree), per chunk for streams. The replicas answer at once and compute nothing, so latencies here say nothing
of a fleet; CPU per request is the figure to trust on a shared machine. Needs cc, taskset and two cores.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CELLS = {  # the load generator's arguments: connections, characters of a prompt, shared prefixes
    "small-c1": "-c 1 -s 800 -g 16",
    "small": "-c 64 -s 800 -g 16",
    "8k": "-c 16 -s 32768 -g 16",
    "8k-distinct": "-c 16 -s 32768 -g 0",
    "8k-half": "-c 16 -s 32768 -g 16 -d 50",
    "32k": "-c 16 -s 131072 -g 16",
    "stream": "-c 64 -s 800 -g 16 -S -k 101",  # an odd number of tokens: the replicas pace them
}
MEMORY = "-c 16 -s 32768 -g 0 -n 20000"
"""The cell `memory`: twice as many prompts of 8k tokens, all distinct."""
STREAMS = "-c 200 -s 800 -g 16 -S -k 1001"  # none ends meanwhile
COLD = "-c 8 -s 524288 -g 0 -n 8"
"""The cell `stall`: prompts of 128k tokens that nobody has seen, all at once, beside 200 paced streams."""
FIGURES = {
    "memory": ("rss_before", "rss_mib", "rss_twice"),
    "stall": ("itl50", "itl99", "itlmax"),
    "stream": ("cpu_us_chunk", "rps", "p50", "p99", "errs", "rss_mib"),
}
"""What is shown of a cell; of the others, the same with `cpu_us`."""
TICK = os.sysconf("SC_CLK_TCK")
Row = dict[str, float]


class Ports(NamedTuple):
    """Where the proxy under test listens, and the replicas behind it."""

    proxy: int
    replicas: list[int]

    @classmethod
    def parse(cls, text: str) -> "Ports":
        """From `8100,9001,9002`: the proxy's comes first."""
        first, *others = map(int, text.split(","))
        return cls(first, others)

    @classmethod
    def add(cls, parser: argparse.ArgumentParser) -> None:
        """The option that asks for them."""
        parser.add_argument(
            "--ports", type=cls.parse, default="8100,9001,9002,9003,9004", help="the proxy's, the replicas'"
        )


def build(out: Path) -> None:
    """Compile the load generator and the replicas."""
    for name in ("mock", "lgen"):
        source, binary = HERE / "hop_tools" / f"{name}.c", out / name
        if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["cc", "-O2", "-w", "-o", str(binary), str(source)], check=True)


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        todo.extend(children.get(current, ()))
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree."""
    total = 0
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def rss_mib(pid: int) -> float:
    """Resident memory of a process tree."""
    pages = 0
    for member in tree(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_ready(process: "subprocess.Popen[bytes]", port: int, seconds: float = 90) -> None:
    """Wait until the proxy answers a request."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"content-type": "application/json", "authorization": "Bearer sk-1234"}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the proxy exited with {process.returncode}")
        try:
            asked = urllib.request.Request(url, body.encode(), headers)
            with urllib.request.urlopen(asked, timeout=5) as reply:  # noqa: S310 - loopback
                if reply.status == 200:
                    time.sleep(1)
                    return
        except OSError:
            time.sleep(0.3)
    sys.exit("the proxy is not ready")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(5)
            break
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def generator(tools: Path, port: int, shape: str) -> list[str]:
    """The command of the load generator."""
    return ["taskset", "-c", "1", str(tools / "lgen"), "-p", str(port), *shape.split()]


def drive(tools: Path, port: int, shape: str) -> Row:
    """Load of one shape on what listens there; what the load generator saw."""
    told = subprocess.run(generator(tools, port, shape), stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(told.stdout)
    return row


def grow(tools: Path, port: int, pid: int) -> Row:
    """What memory the proxy takes before distinct prompts, after 20,000 of them, after as many again."""
    before = rss_mib(pid)
    drive(tools, port, MEMORY)
    after = rss_mib(pid)
    row = drive(tools, port, MEMORY)
    return row | {"rss_before": before, "rss_mib": after, "rss_twice": rss_mib(pid)}


def stall(tools: Path, port: int, seconds: float) -> Row:
    """What streams notice of cold long prompts: microseconds between the chunks of one."""
    shape = f"{STREAMS} -w 2 -t {seconds}"
    with subprocess.Popen(generator(tools, port, shape), stdout=subprocess.PIPE, text=True) as streams:
        time.sleep(3)
        drive(tools, port, COLD)
        told, _ = streams.communicate()
    row: Row = json.loads(told)
    return row


def start(command: str) -> "subprocess.Popen[bytes]":
    """Start a proxy on its core."""
    return subprocess.Popen(
        ["taskset", "-c", "0", "sh", "-c", command],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def measure(
    tools: Path, ports: Ports, command: str | None, cells: list[str], seconds: float
) -> dict[str, Row]:
    """One round of one proxy; without a command, of the replicas alone."""
    process, port = None, ports.replicas[0]
    if command is not None:
        process = start(command)
        port = ports.proxy
    rows: dict[str, Row] = {}
    try:
        if process is not None:
            wait_ready(process, port)
        for cell in cells:
            before = cpu_seconds(process.pid) if process is not None else 0.0
            if cell == "memory":
                row = grow(tools, port, process.pid) if process is not None else {"done": 1.0}
            elif cell == "stall":
                row = stall(tools, port, seconds)
            else:
                row = drive(tools, port, f"{CELLS[cell]} -w 0.7 -t {seconds}")
            used = cpu_seconds(process.pid) - before if process is not None else 0.0
            row["cpu_us"] = used / max(row["done"], 1) * 1e6
            if row.get("evs"):
                row["cpu_us_chunk"] = used / row["evs"] * 1e6
            row.setdefault("rss_mib", rss_mib(process.pid) if process is not None else 0.0)
            rows[cell] = row
    finally:
        if process is not None:
            stop(process)
    return rows


@contextmanager
def replicas(ports: Ports) -> Iterator[Path]:
    """The replicas, running; where the tools are."""
    tools = Path(tempfile.gettempdir()) / "warmroute-hop"
    tools.mkdir(exist_ok=True)
    build(tools)
    command = ["taskset", "-c", "1", str(tools / "mock"), "-d", "20000", *map(str, ports.replicas)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield tools
    finally:
        process.terminate()
        process.wait()


def own(python: str, tokenizer: Path, ports: Ports) -> dict[str, str]:
    """This proxy's commands."""
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports.replicas)
    serve = f"exec {python} -m proxy serve --port {ports.proxy} --replicas {urls} --shutdown-delay 0"
    return {"warmroute": serve, "warmroute-exact": f"{serve} --tokenizer {tokenizer}"}


def main(argv: list[str]) -> int:
    """Run the hop bench."""
    parser = argparse.ArgumentParser(
        prog="python -m bench hop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("others", nargs="*", metavar="NAME=COMMAND")
    parser.add_argument(
        "--cells", default="small-c1,small,8k,32k,stream", help=f"of {', '.join([*CELLS, 'memory', 'stall'])}"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, for each cell and round")
    Ports.add(parser)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs this proxy")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "data" / "tokenizer")
    parser.add_argument("--out", type=Path, default=Path("bench/out/hop.json"))
    options = parser.parse_args(argv)
    cells = options.cells.split(",")
    commands: dict[str, str | None] = {
        "direct": None,
        **own(options.python, options.tokenizer, options.ports),
    }
    commands |= dict(item.split("=", 1) for item in options.others)
    rounds: dict[str, list[dict[str, Row]]] = {name: [] for name in commands}
    with replicas(options.ports) as tools:
        for _ in range(options.rounds):
            for name, command in commands.items():
                rounds[name].append(measure(tools, options.ports, command, cells, options.seconds))
    show(rounds, cells)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "command": f"python -m bench hop {' '.join(argv)}".strip(),
        "python": subprocess.run(
            [options.python, "-V"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "rounds": rounds,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwrote {options.out}")
    return 0


def show(rounds: dict[str, list[dict[str, Row]]], cells: list[str]) -> None:
    """Print the medians."""

    def median(name: str, cell: str, key: str) -> float:
        return statistics.median(measured[cell].get(key, 0.0) for measured in rounds[name])

    for cell in cells:
        keys = FIGURES.get(cell) or ("cpu_us", *FIGURES["stream"][1:])
        print(f"\n{cell}: {', '.join(keys)}")
        for name in rounds:
            figures = [median(name, cell, key) for key in keys]
            print(f"  {name:24}" + "".join(f"{figure:10.1f}" for figure in figures))
