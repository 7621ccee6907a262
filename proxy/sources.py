"""Where settings come from: a flag wins over a variable, a variable over the file, the file over the default.

Each of the three is read into a `Layer` under the same rules: an unknown name stops the start and the nearest
match is named, a setting of a later version is refused rather than ignored, every value remembers who set it.
Never logs or prints, and never quotes a secret.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from policies import registry
from proxy.config import Settings
from proxy.spec import ReplicaSpec, parse_json

PREFIX = str(Settings.model_config["env_prefix"])
CONFIG = "config"
"""`--config FILE` or WARMROUTE_CONFIG: names the file, so it cannot be in it."""

RENAMED: dict[str, str] = {}
"""Settings that are called otherwise now, the old path to the new. An old name works, and is warned of, for
two minor versions; then it goes, and the CHANGELOG says so."""

# A Kubernetes Service named warmroute or warmroute-x puts these into every pod beside it.
_SERVICE_LINK = re.compile(r"(_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP))(_\w+)?$")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


class ConfigError(Exception):
    """What is wrong with the settings: one sentence a line, each with the setting, its value and the fix."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one source, and how a person spells a setting there."""

    spell: Callable[[str], str]
    values: dict[str, Any] = field(default_factory=dict)
    """Path, as in `timeouts.connect`, to what was given there."""
    old: dict[str, str] = field(default_factory=dict)
    """Of those, what was given under another name, to that name."""

    def put(self, path: str, value: Any) -> None:
        """Take one value; a group is taken apart. ConfigError where there is no such setting."""
        if (now := RENAMED.get(path)) is not None:
            path, self.old[now] = now, path
            if path in self.values:
                raise self._twice(path)
        elif path in self.old:
            raise self._twice(path)
        group = GROUPS.get(path)
        if group is not None:
            try:
                members = parse_json(value) if isinstance(value, str) else value
            except ValueError as error:
                raise ConfigError(f"{self.spell(path)} is {value!r}: it {error}") from None
            if not isinstance(members, Mapping):
                raise ConfigError(f"{self.spell(path)} is {value!r}: it should be an object with {group}")
            for name, member in members.items():
                self.put(f"{path}.{name}", member)
        elif path in FIELDS or path.startswith("policy_params."):
            self.values[path] = value
        else:
            match = get_close_matches(path, (*FIELDS, *GROUPS), n=1)
            fix = f"did you mean {self.spell(match[0])}?" if match else "`warmroute --help` lists them all"
            raise ConfigError(f"{self.spell(path)} is not a setting: {fix}")

    def _twice(self, path: str) -> ConfigError:
        names = f"{self.spell(self.old[path])} and {self.spell(path)}"
        return ConfigError(f"{names} are one setting under two names: keep {self.spell(path)}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Path to the flag, variable or file key that set it; a default has none."""
    warnings: Sequence[str] = ()
    """A sentence for each old name that was used."""


def variable(path: str) -> str:
    """Spell a setting as an environment variable."""
    return PREFIX + path.replace(".", "__").upper()


def flag(path: str) -> str:
    """Spell a setting as a flag."""
    return "--" + path.replace("_", "-")


def read_flags(pairs: Iterable[tuple[str, str | None]]) -> Layer:
    """Read (name without dashes in front, value or None if there was none) pairs."""
    layer = Layer(flag)
    for name, value in pairs:
        path = name.replace("-", "_")
        if path in layer.values and path not in layer.old:
            raise ConfigError(f"{flag(path)} is given twice: keep one of them")
        bare = value is None
        layer.put(path, "true" if bare else value)
        if bare and getattr(FIELDS.get(RENAMED.get(path, path)), "annotation", None) is not bool:
            raise ConfigError(f"{flag(path)} needs a value: {flag(path)} VALUE")
    return layer


def read_variables(environ: Mapping[str, str]) -> Layer:
    """Read what begins with WARMROUTE_. An empty variable counts as absent: compose files leave such."""
    layer = Layer(variable)
    for name, value in sorted(environ.items()):  # a group comes before its members, so a member wins
        path = name[len(PREFIX) :].lower().replace("__", ".")
        if not name.upper().startswith(PREFIX) or path == CONFIG or not value:
            continue
        if path.startswith("test_"):  # the test suite's own
            continue
        if _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_URL.match(value)):
            continue
        layer.put(path, value)
    return layer


def read_file(path: Path) -> Layer:
    """Read a YAML file."""
    layer = Layer(lambda name: f"`{name}` in {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read ({error.strerror}): name another file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is not a text file: write YAML in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "the file"
        why = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"--config {path} is not valid YAML ({where}: {why}): correct it") from None
    if content is None:
        return layer
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} should hold settings, one `name: value` a line")
    for name, value in content.items():
        if value is not None:
            layer.put(str(name), value)
    return layer


def load(flags: Layer, variables: Layer, file: Layer | None = None) -> Loaded:
    """Merge the layers and validate. ConfigError holds every fault found."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    for layer in (file, variables, flags):
        if layer is not None:
            warnings += [
                f"{layer.spell(old)} is called {layer.spell(now)} now, and the old name will go: rename it"
                for now, old in layer.old.items()
            ]
            values |= {path: value for path, value in layer.values.items() if value is not None}
            origins |= {path: layer.spell(path) for path in layer.values}
    nested: dict[str, Any] = {}
    for path, value in values.items():
        group, dot, name = path.partition(".")
        if dot:
            nested.setdefault(group, {})[name] = value
        else:
            nested[path] = value
    if faults := _policy_faults(values, origins):
        raise ConfigError("\n".join(faults))
    try:
        return Loaded(Settings(**nested), origins, warnings)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentences(error, origins))) from None


def _fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, each in model.model_fields.items():
        if isinstance(each.annotation, type) and issubclass(each.annotation, BaseModel):
            found |= _fields(each.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = each
    return found


FIELDS: Mapping[str, FieldInfo] = {
    path: each for path, each in _fields(Settings).items() if path != "policy_params"
}
"""Every setting by its path; the parameters of a policy are its own."""

GROUPS: Mapping[str, str] = {
    group: ", ".join(path.partition(".")[2] for path in FIELDS if path.startswith(f"{group}."))
    for group in dict.fromkeys(path.partition(".")[0] for path in FIELDS if "." in path)
} | {"policy_params": "the policy's parameters"}
"""Every group of settings, and the names in it for a message."""


def is_secret(path: str) -> bool:
    """True if the value may never be shown."""
    annotation = FIELDS[path].annotation if path in FIELDS else None
    return annotation is SecretStr or SecretStr in get_args(annotation)


def _policy_faults(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """What is wrong with the policy or one of its parameters, each under the name a person gave it."""
    policy = values.get("policy", Settings.model_fields["policy"].default)
    if policy not in registry.names():
        match = get_close_matches(str(policy), registry.names(), n=1)
        fix = f"did you mean {match[0]}?" if match else f"there are {', '.join(registry.names())}"
        return [f"{origins['policy']} is {policy!r}: {fix}"]
    faults: list[str] = []
    for path, value in values.items():
        group, dot, name = path.partition(".")
        if dot and group == "policy_params":
            try:
                registry.create(policy, {name: value})
            except ValueError as error:
                faults.append(f"{origins[path]} is {value!r}: {error}")
    return faults


def _sentences(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    """One sentence for each value at fault; the members of a union speak in one."""
    faults: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        path, rest = _locate(fault["loc"])
        reason = re.sub(r"^(Value error, |(Input|String|Value) (?=should))", "", fault["msg"])
        reason = reason.partition(", unable to")[0]
        if fault["type"].startswith("byte_size"):
            reason = "should be a size, like 64MiB"
        if not path:
            faults[reason] = []
            continue
        subject = ", ".join((origins.get(path, variable(path)), *rest))
        if fault["type"] == "missing":
            faults[f"{subject} is required"] = []
        elif fault["type"] == "extra_forbidden":
            faults[_unknown_member(subject, str(fault["loc"][-1]))] = []
        else:
            shown = repr(fault["input"])
            if not is_secret(path) and "@" not in shown and "password" not in shown:
                subject += f" is {shown[:77] + '...' if len(shown) > 80 else shown}"
            faults.setdefault(subject, []).append(reason)
    return [
        f"{subject}: it {' or '.join(reasons)}" if reasons else subject for subject, reasons in faults.items()
    ]


def _locate(loc: tuple[int | str, ...]) -> tuple[str, list[str]]:
    """Split pydantic's location into the setting and a person's words for the place inside its value."""
    length = 2 if len(loc) > 1 and f"{loc[0]}.{loc[1]}" in FIELDS else 1
    path = ".".join(str(part) for part in loc[:length])
    inside = loc[length:]
    if inside and (isinstance(inside[0], int) or path == "aliases"):
        return path, [f"entry {part + 1}" if isinstance(part, int) else part for part in inside]
    return path, []  # what remains names a member of a union


def _unknown_member(subject: str, name: str) -> str:
    match = get_close_matches(name, ReplicaSpec.model_fields, n=1)
    fix = f"did you mean {match[0]}?" if match else f"a replica has {', '.join(ReplicaSpec.model_fields)}"
    return f"{subject} is not known: {fix}"
