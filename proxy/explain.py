"""What the settings and policies look like to a person: `--help`, `--print-config`, `warmroute policies`.

Pure text. A secret is never shown.
"""

import json
import textwrap
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from policies import registry
from proxy.config import MASK, Settings
from proxy.sources import FIELDS, GROUPS, Loaded, flag, is_secret, variable

_USAGE = """\
warmroute sends each LLM request to the replica whose KV cache is warm for its prompt.

usage: warmroute [serve] [--NAME VALUE ...] [--config FILE] [--check-config | --print-config]
       warmroute doctor [--NAME VALUE ...]
       warmroute top [--url URL] [--once] [--NAME VALUE ...]
       warmroute breaks FILE [--hours N] [--windows] [--json]
       warmroute policies
       warmroute key NAME
       warmroute --version | --help

  serve            the proxy (the command when none is named)
  doctor           asks every replica and Redis of the settings, and says what is wrong and what fixes it;
                   exit status 1 if anything loses hits
  top              the fleet and its hit rates, live in a terminal: of the proxy at --url, or of the one that
                   the settings name; --once prints one screen
  breaks FILE      where prompts of a file that are nearly alike part, and what that costs; each line is a
                   request's body, or a line of an OpenAI batch. --hours: so much traffic it is, for what
                   that costs a day; --windows shows the words around, masked; --json is for programs
  policies         the policies with their parameters and defaults
  key NAME         make an API key: the line for api_keys_file on standard output, the key on standard error
  --config FILE    YAML file of settings (or WARMROUTE_CONFIG)
  --check-config   say whether the settings are valid, and exit
  --print-config   print the settings in force and where each came from, and exit

One name everywhere: --timeouts.first-byte = WARMROUTE_TIMEOUTS__FIRST_BYTE = `timeouts: {first_byte: ...}` in
the file. A flag wins over a variable, a variable over the file, the file over the default.

"""


def usage() -> str:
    """Give the text of `--help`: every setting with its flag, variable, default and meaning."""
    lines: list[str] = []
    for path, field in FIELDS.items():
        lines += _entry(path, _default(path, field), field.description or "")
        if path == "policy":
            lines += _entry("policy_params.NAME", "the policy's", "parameter NAME of that policy")
    return _USAGE + "\n".join(lines) + "\n"


def effective(loaded: Loaded) -> str:
    """Give the settings in force as a file for `--config`, with where each came from as comments."""
    plain = loaded.settings.model_dump(mode="json")
    plain["replicas"] = [replica.model_dump(exclude_none=True) for replica in loaded.settings.replicas]
    plain["policy_params"] = _policy_params(loaded.settings)
    lines: list[str] = []
    for name, value in plain.items():
        if name in GROUPS and value:
            lines.append(f"{name}:")
            lines += [_line(loaded, f"{name}.{member}", each) for member, each in value.items()]
        else:
            lines.append(_line(loaded, name, value))
    return "\n".join(lines) + "\n"


def catalogue(policies: Sequence[registry.Description]) -> str:
    """Give every policy with its parameters and defaults."""
    lines: list[str] = []
    for policy in policies:
        lines.append(f"{policy.name}: {policy.summary}")
        for each in policy.parameters:
            lines += _entry(f"policy_params.{each.name}", str(each.default), each.doc)
        lines.append("")
    return "\n".join(lines)


def _entry(path: str, default: str, meaning: str) -> list[str]:
    wrapped = textwrap.wrap(" ".join(meaning.split()), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [f"  {flag(path)}, {variable(path)}  (default: {default})", *wrapped]


def _policy_params(settings: Settings) -> dict[str, Any]:
    """Give all of the policy's parameters, as it takes them."""
    policy = registry.create(settings.policy, settings.policy_params)
    (known,) = (each for each in registry.describe() if each.name == settings.policy)
    return {each.name: getattr(policy, each.name) for each in known.parameters}


def _line(loaded: Loaded, path: str, value: Any) -> str:
    origin = loaded.origins.get(path)
    indent, name = "  " * path.count("."), path.rpartition(".")[2]
    if is_secret(path) and value is not None:
        text = f"# {name}: '{MASK}'"
        origin = origin or (
            f"from {path}_file" if getattr(loaded.settings, f"{path}_file") else "made at this start"
        )
    else:
        text = f"{name}: {_yaml(value)}"
    return f"{indent + text:<48}  # {origin or 'default'}"


def _yaml(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, str) and value.isprintable():
        text: str = yaml.safe_dump(value, width=1 << 20, allow_unicode=True)
        return text.removesuffix("...\n").rstrip("\n")
    text = json.dumps(value, ensure_ascii=False)  # YAML reads JSON, but takes fewer characters as they are
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _default(path: str, field: FieldInfo) -> str:
    if is_secret(path) or field.default in (None, (), {}):
        return "not set"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, tuple):
        return ",".join(map(_plain, field.default))
    return _plain(field.default)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
