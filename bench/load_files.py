"""What a load run leaves behind: result.json, requests.jsonl, summary.md, report.html, pictures."""

import argparse
import base64
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import account, report, summary
from bench.account import Slo
from bench.endpoint import Endpoint
from bench.lifecycle import Target, Window
from bench.record import Record
from bench.traffic import Traffic

SECRETS = ("--admin-token", "--api-key")
LIFECYCLE = ("warm_up", "cool_down", "prime", "keep", "timeout")


def content(
    arguments: argparse.Namespace, wanted: Traffic, target: Target, window: Window, command: str
) -> dict[str, Any]:
    """`result.json`."""
    closed = arguments.concurrency is not None
    one = account.run(arguments.policy, window, Slo(arguments.slo_ttft, arguments.slo_tpot))
    one["problems"] = account.problems(one)
    one["cautions"] = account.cautions(one, open_loop=not closed)
    mode = (
        f"Closed loop, {arguments.concurrency} at a time: latency counts from sending, and a stall hides the "
        "requests that it kept from being sent."
        if closed
        else "Open loop: latency counts from the time a request was due."
    )
    workload = wanted.described() | {"concurrency": arguments.concurrency, "requests": arguments.requests}
    return report.result(
        [one],
        workload=json.loads(json.dumps(workload)),
        simulated=any(engine.simulated for engine in target.engines),
        load={
            "command": command,
            "mode": mode,
            "urls": list(target.urls),
            "lifecycle": {name: getattr(arguments, name) for name in LIFECYCLE},
        },
        engines=[engine_told(engine) for engine in target.engines],
    )


def engine_told(engine: Endpoint) -> dict[str, Any]:
    """For the result; paths of this machine are nobody's business."""
    told = asdict(engine)
    del told["tokenizer"]
    return told


def command_line(command: str, argv: Sequence[str]) -> str:
    """As it was given, without secrets."""
    words = [
        name if before not in SECRETS else "..." for before, name in zip(["", *argv], argv, strict=False)
    ]
    words = [
        f"{w.partition('=')[0]}=..." if w.partition("=")[0] in SECRETS and "=" in w else w for w in words
    ]
    return shlex.join(["python", "-m", "bench", command, *words])


def line(record: Record) -> str:
    """Of requests.jsonl."""
    told = asdict(record)
    for name, value in told.items():
        if isinstance(value, float):
            told[name] = round(value, 6)
    told["gaps"] = [round(gap, 5) for gap in record.gaps]
    return json.dumps(told, separators=(",", ":")) + "\n"


def save(result: dict[str, Any], records: Sequence[Record], out: Path) -> list[Path]:
    """Everything but requests.jsonl; the paths."""
    from bench import load_plots  # noqa: PLC0415 - matplotlib takes a second, which a load run need not wait for

    report.write(result, out / "result.json")
    pictures = load_plots.draw(result, result["runs"][0], records, out)
    parts = summary.sections(result)
    (out / "summary.md").write_text(summary.markdown(parts))
    encoded = [(path.stem, base64.b64encode(path.read_bytes()).decode()) for path in pictures]
    (out / "report.html").write_text(summary.html(parts, encoded))
    return [out / "result.json", out / "summary.md", out / "report.html", *pictures]


def tell(console: Console, result: dict[str, Any]) -> None:
    """The tables, then what is wrong."""
    report.print_table(
        console, result["workload"]["name"], [("", result["runs"])], simulated=result["simulated"]
    )
    report.print_shares(console, result["runs"])
    one = result["runs"][0]
    console.print(
        f"goodput {one['goodput']:.2f} a second, shed {one['all']['shed_rate']:.1%}", highlight=False
    )
    for caution in one["cautions"]:
        console.print(f"[yellow]{caution}", soft_wrap=True)
    for reason in one["problems"]:
        console.print(f"[bold red]{reason}", soft_wrap=True)
