"""`python -m bench COMMAND ...`; a command's module is imported only when it is used."""

import sys
from importlib import import_module

COMMANDS = {
    "engine": "simulated replicas: OpenAI-compatible servers with a real block cache",
    "load": "load over HTTP, open or closed loop: latencies, hit rates, errors, with intervals",
    "compare": "gates for a release: is B worse than A, beyond noise?",
    "simulate": "every policy on a workload or a trace, on a virtual clock",
    "whatif": "replicas, cache, rates, index delay, proxies: what each would change, on a virtual clock",
    "admission": "classes and limits on a virtual clock: floods, long prompts, a sweep of limits",
    "canary": "a canary with better, equal and bad policies, on a virtual clock",
    "article": "the experiment of the article behind this project, in its own terms",
    "peers": "other routers on the same fleet, in turn: hits, latency, load, cost",
    "breaks": "which planted prefix breaks are found among requests, and false alarms",
    "trial": "canaries of a running proxy, in front of simulated replicas",
    "micro": "what the parts cost: keys, index, routing",
    "hop": "CPU a request costs in the proxy, beside any other proxy",
    "watched": "CPU that looking costs a request: dashboards, and what looks at traffic",
    "demo": "the whole thing without a GPU, round robin against prefix_cost",
    "proxies": "several proxies with and without a common index, against one",
    "takeover": "the proxy that follows the replicas' events is killed: how long until another does",
    "warmup": "a proxy that starts against a large index in Redis: how long until it knows it",
    "agreement": "what proxies foretell against what running replicas report",
    "scale": "what a large fleet asks of proxies and Redis, computed from what was measured",
    "chaos": "replicas killed and restarted under load, clients that leave: what is lost, what is left",
    "real": "round robin against prefix_cost on running real replicas",
}


def main(argv: list[str]) -> int:
    """Hand over to a command's own `main`."""
    if not argv or argv[0] not in COMMANDS:
        print("usage: python -m bench COMMAND ...\n")
        for name, what in COMMANDS.items():
            print(f"  {name:<10} {what}")
        return 0 if argv and argv[0] in {"-h", "--help"} else 2
    command = import_module(f"bench.{argv[0]}")
    return int(command.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
