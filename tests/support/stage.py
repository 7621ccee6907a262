"""A folder like a fresh checkout, in which the documents' commands run as a person would run them.

`Stage` puts what runs here in the place of the addresses, files and names that the documents use: simulated
replicas, a proxy before them, a Valkey, each started when the first command that names it comes, and ended
with the stage. The environment is the caller's without any setting of the product; `python`, `warmroute` and
`.venv/bin/...` are this suite's own.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple, Self

from bench.__main__ import main as bench_main
from proxy.shared.embedded import binary
from tests.support.shortened import HERE, Short
from tests.support.tools import ROOT, environment

PATIENCE = 240.0
"""Seconds for one command: it takes a few, and more where the machine is busy."""
REPLICAS = [f"{host}:{port}" for host, port in (("10.0.0.1", 8000), ("10.0.0.2", 8000))]
ENGINES = [f"127.0.0.1:{port}" for port in (8101, 8102, 8103)]
BODY = {"model": "m", "messages": [{"role": "user", "content": "Where?"}]}
SESSION = {
    "id": "s",
    "block_size": 64,
    "requests": [{"t": 0.0, "in": 1024, "out": 7, "hash_rle": [[1, 16]]}],
}
"""A line of the coding agent's trace, which is not part of the tree."""


class Done(NamedTuple):
    """How a command ended."""

    status: int
    output: str
    errors: str
    missing: list[str]
    """Files that it promised and did not write."""


class Stage:
    """One folder and what runs for it. Use as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running = ExitStack()
        self._known: dict[str, str] = {}

    def __enter__(self) -> Self:
        (self.folder / "bench" / "out").mkdir(parents=True)
        shutil.copytree(ROOT / "bench" / "results" / "baseline", self.folder / "bench/results/baseline")
        (self.folder / ".venv").symlink_to(sys.prefix)
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        for name in ("Makefile", "pyproject.toml", "requirements.lock"):
            shutil.copy2(ROOT / name, self.folder)
        (self.folder / "FILE").write_text(json.dumps(BODY) + "\n")
        (self.folder / "secret").write_text("a secret of this test's")
        traces = self.folder / "traces"
        traces.mkdir()
        for name in ("mooncake_conversation_trace.jsonl.gz", "mooncake_synthetic_trace.jsonl.gz"):
            (traces / name).symlink_to(ROOT / "bench/data/traces/mooncake_conversation_trace.jsonl.gz")
        (traces / "agentic_coding_sessions.jsonl").write_text(
            "".join(json.dumps(SESSION | {"id": str(number)}) + "\n" for number in range(30))
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def environment(self) -> dict[str, str]:
        """What the commands see."""
        kept = {key: value for key, value in environment().items() if not key.startswith("WARMROUTE_")}
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{kept.get('PATH', '')}"
        return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def shell(self, line: str) -> Done:
        """Run a line as it stands, but for what `real` puts in place."""
        return self._run(["sh", "-ec", self.real(line)])

    def bench(self, short: Short) -> Done:
        """Run a command of the bench."""
        words = [self.real(word) for word in short.words]
        for word in words:  # what it reads
            if word.startswith("bench/results/") and word not in short.writes():
                self._copy(word)
        done = self._here(words) if short.name in HERE else self._run([sys.executable, "-m", "bench", *words])
        missing = [name for name in short.writes() if not (self.folder / self.real(name)).is_file()]
        return done._replace(missing=missing)

    def serve(self, words: Sequence[str], says: str) -> Done:
        """Run what goes on until Ctrl-C: until it says this, and is told to end."""
        with _Server([self.real(word) for word in words], self) as server:
            server.until(says)
            status = server.end(signal.SIGINT)
        return Done(status, server.output(), "", [])

    def real(self, text: str) -> str:
        """The same, with what runs here in the place of what the documents call it."""
        text = text.replace("0.0.0.0", "127.0.0.1")
        text = text.replace("/etc/", f"{self.folder}/etc/").replace("/opt/", f"{self.folder}/opt/")
        text = text.replace("/run/secrets/warmroute", str(self.folder / "secret"))
        text = text.replace("TRACES/agentic_coding_sessions.jsonl.gz", "traces/agentic_coding_sessions.jsonl")
        text = text.replace("TRACES/", "traces/")
        if text == "PORTS":
            text = ",".join(map(str, free_ports(3)))
        if text == "…":
            text = ",".join(f"http://{name}" for name in REPLICAS)
        if "redis://:password@redis:6379" in text:
            text = text.replace("redis://:password@redis:6379", self._valkey())
        for name in (*REPLICAS, *ENGINES):
            if name in text:
                text = text.replace(name, self._replica(name))
        for name in ("127.0.0.1:8080", "localhost:8080"):
            if name in text:
                text = text.replace(name, self._proxy())
        return text

    # ---- what runs ---------------------------------------------------------------------------------------

    def _replica(self, name: str) -> str:
        if "replicas" not in self._known:
            command = [sys.executable, "-m", "bench", "engine", "--ports", "0,0,0", "--kv-events", "vllm"]
            command += ["--cache-tokens", "60000", "--prefill-tokens-per-s", "200000", "--profile", "h100-8b"]
            server = self._running.enter_context(_Server(command, self))
            server.until("ready")
            self._known["replicas"] = " ".join(re.findall(r" on http://(\S+)", server.output()))
        number = (REPLICAS if name in REPLICAS else ENGINES).index(name)
        return self._known["replicas"].split()[number]

    def _proxy(self) -> str:
        if "proxy" not in self._known:
            urls = ",".join(f"http://{self._replica(name)}" for name in REPLICAS)
            command = [sys.executable, "-m", "proxy", "--port", "0", "--redis-url", "none"]
            server = self._running.enter_context(_Server([*command, "--replicas", urls], self))
            self._known["proxy"] = server.until(r"listening on http://(\S+)")
        return self._known["proxy"]

    def _valkey(self) -> str:
        if "valkey" not in self._known:
            (port,) = free_ports(1)
            command = [str(binary()), "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
            server = self._running.enter_context(_Server([*command, "--requirepass", "password"], self))
            server.until("Ready to accept")
            self._known["valkey"] = f"redis://:password@127.0.0.1:{port}"
        return self._known["valkey"]

    def _run(self, command: list[str]) -> Done:
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)  # and all that it has started
                raise
        return Done(process.returncode, output, errors, [])

    def _here(self, words: list[str]) -> Done:
        out, errors = StringIO(), StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(errors):
            status = bench_main(words)
        return Done(status, out.getvalue(), errors.getvalue(), [])

    def _copy(self, name: str) -> None:
        if (ROOT / name).is_file() and not (self.folder / name).exists():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)


class _Server:
    """Something that runs until it is ended."""

    def __init__(self, command: list[str], stage: Stage) -> None:
        self._log = stage.folder / f"server-{len(list(stage.folder.glob('server-*')))}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=stage.folder,
                env=stage.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, says: str) -> str:
        """Wait until it says this; the pattern's group, if it has one."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(says, self.output())):
            assert self._process.poll() is None, f"it ended: {self.output()}"
            assert time.monotonic() < deadline, f"it does not say {says!r}: {self.output()}"
            time.sleep(0.02)
        return found[1] if found.groups() else found[0]

    def end(self, number: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(PATIENCE / 8)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
