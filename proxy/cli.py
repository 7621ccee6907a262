"""The command line: `warmroute serve`, `doctor`, `top`, `breaks`, `policies`, `key`, `--version`.

Reads settings, checks that it runs from its own packages, and hands over to `proxy.app`. What a person got
wrong is one sentence on standard error and exit status 2, never a traceback.
"""

import os
import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from policies import registry
from proxy import keys_file
from proxy.explain import catalogue, effective, usage
from proxy.sources import CONFIG, ConfigError, Loaded, load, read_file, read_flags, read_variables, variable

DISTRIBUTION = "warmroute"
COMMANDS = ("serve", "doctor", "top", "breaks", "policies", "key")
_SWITCHES = ("print_config", "check_config")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except ConfigError as error:
        for sentence in str(error).splitlines():
            sys.stderr.write(f"warmroute: {sentence}\n")
        return 2
    except BrokenPipeError:  # `warmroute policies | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes once more
        return 0


def _run(arguments: list[str]) -> int:
    command = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "serve"
    if command not in COMMANDS:
        match = get_close_matches(command, COMMANDS, n=1)
        fix = f"did you mean {match[0]}?" if match else f"there are {', '.join(COMMANDS)}"
        raise ConfigError(f"{command!r} is not a command: {fix}")
    if {"-h", "--help"} & set(arguments):
        return _say(usage())
    if {"-V", "--version"} & set(arguments):
        return _say(f"{DISTRIBUTION} {_version()}\n")
    if command == "serve":
        return _serve(arguments)
    if command == "doctor":
        return _doctor(arguments)
    if command == "top":
        return _top(arguments)
    if command == "breaks":
        return _breaks(arguments)
    if command == "key":
        return _make_key(arguments)
    if arguments:
        raise ConfigError(f"warmroute {command} takes no arguments: leave out {' '.join(arguments)}")
    return _say(catalogue(registry.describe()))


def _serve(arguments: Sequence[str]) -> int:
    loaded, switches = _settings(arguments)
    if "print_config" in switches:
        return _say(effective(loaded))
    settings = loaded.settings
    named = settings.replicas or settings.discovery == "kubernetes"
    if not named and settings.admin_token is None:
        raise ConfigError(
            f"no replica is named: set {variable('replicas')}=http://host:port (or --replicas, or the file's "
            f"replicas:), or {variable('admin_token')} to add replicas while it runs"
        )
    if "check_config" in switches:
        return _say("the settings are valid\n")
    _check_owners()
    if settings.workers > 1:
        from proxy import supervisor  # noqa: PLC0415 - everything above answers without loading the server

        return supervisor.run(settings)
    from proxy import lifecycle  # noqa: PLC0415

    return lifecycle.run(settings)


def _doctor(arguments: Sequence[str]) -> int:
    loaded, switches = _settings(arguments)
    if switches:
        raise ConfigError("warmroute doctor takes settings only")
    _check_owners()
    from proxy.doctor import run  # noqa: PLC0415 - everything else answers without loading the server

    return run.run(loaded.settings)


def _top(arguments: Sequence[str]) -> int:
    own, rest = _taken(arguments, ("url", "once"))
    loaded, switches = _settings(rest)
    if switches:
        raise ConfigError("warmroute top takes --url, --once and settings")
    url = own.get("url")
    if "url" in own and (url is None or not url.startswith(("http://", "https://"))):
        raise ConfigError(f"--url is {url!r}: it should be a proxy's, like http://127.0.0.1:8080")
    from proxy import top  # noqa: PLC0415 - nothing else draws in a terminal

    return top.run(loaded.settings, url=url, once="once" in own)


def _breaks(arguments: Sequence[str]) -> int:
    usage = "warmroute breaks takes a file: warmroute breaks FILE [--hours N] [--windows] [--json]"
    files = [argument for argument in arguments[:1] if not argument.startswith("-")]
    if not files:
        raise ConfigError(usage)
    own, rest = _taken(arguments[1:], ("hours", "windows", "json"))
    if rest:
        raise ConfigError(usage)
    try:
        hours = float(own["hours"] or "") if "hours" in own else None
    except ValueError:
        hours = 0.0
    if hours is not None and not 0 < hours < float("inf"):
        raise ConfigError(
            f"--hours is {own['hours']!r}: it should be how many hours of traffic the file holds"
        )
    from proxy.breaks import file  # noqa: PLC0415 - nothing else needs it

    try:
        with Path(files[0]).open("rb") as lines:
            prompts, found = file.find(lines, windows="windows" in own, hours=hours)
    except OSError as error:
        raise ConfigError(f"{files[0]} cannot be read ({error.strerror}): name another file") from None
    return _say(file.as_json(prompts, found) if "json" in own else file.page(prompts, found))


def _make_key(arguments: Sequence[str]) -> int:
    """Make an API key: the line for the file on standard output, the key itself on standard error."""
    if len(arguments) != 1:
        raise ConfigError("warmroute key takes the caller's name: warmroute key NAME >> KEYS_FILE")
    try:
        key, line = keys_file.make(arguments[0])
    except ValueError as error:
        raise ConfigError(f"the name {arguments[0]!r} cannot be used: it {error}") from None
    sys.stderr.write(f"the key, which is shown this once: {key}\n")
    return _say(line)


def _settings(arguments: Sequence[str]) -> tuple[Loaded, set[str]]:
    """Read every source; which switches were given."""
    pairs = list(_pairs(arguments))
    switches = {name for name, _ in pairs if name in _SWITCHES}
    named = [value for name, value in pairs if name == CONFIG] or [os.environ.get(variable(CONFIG))]
    if len(named) > 1 or (named[0] is None and any(name == CONFIG for name, _ in pairs)):
        raise ConfigError("--config takes one file: --config FILE")
    file = read_file(Path(named[0])) if named[0] else None
    flags = read_flags((name, value) for name, value in pairs if name not in (*_SWITCHES, CONFIG))
    loaded = load(flags, read_variables(os.environ), file)
    for sentence in loaded.warnings:
        sys.stderr.write(f"warmroute: {sentence}\n")
    return loaded, switches


def _taken(arguments: Sequence[str], names: Collection[str]) -> tuple[dict[str, str | None], list[str]]:
    """What a command takes for itself, and the arguments that are settings."""
    own: dict[str, str | None] = {}
    rest: list[str] = []
    for name, value in _pairs(arguments):
        if name in names:
            own[name] = value
        else:
            spelled = f"--{name.replace('_', '-')}"
            rest.append(spelled if value is None else f"{spelled}={value}")
    return own, rest


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Split `--name value`, `--name=value`, `--name`; a value that begins with two dashes needs the `=`."""
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        name, equals, value = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not argument.startswith("--") or not name:
            raise ConfigError(f"{argument!r} is not understood: settings are written --name value")
        if name in _SWITCHES and equals:
            raise ConfigError(f"{argument} takes no value: write --{name.replace('_', '-')}")
        if equals:
            yield name, value
        elif name in _SWITCHES or not rest or rest[0].startswith("--"):
            yield name, None
        else:
            yield name, rest.popleft()


def _say(text: str) -> int:
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(a checkout that is not installed)"


def _check_owners() -> None:
    """Refuse to run from a mixture: other distributions also install a package called `proxy`."""
    owners = packages_distributions()
    for package in ("proxy", "policies"):
        if others := sorted(set(owners.get(package, ())) - {DISTRIBUTION}):
            raise ConfigError(
                f"the package {package!r} here is also that of {', '.join(others)}: "
                f"install {DISTRIBUTION} in an environment of its own"
            )
