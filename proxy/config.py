"""The settings: what there is to set, its type, its default and its meaning.

One name everywhere: `timeouts.first_byte` here is the variable WARMROUTE_TIMEOUTS__FIRST_BYTE, the flag
`--timeouts.first-byte` and the key `first_byte` under `timeouts` in the file. `proxy.sources` reads those
three; a `Settings` built in code reads nothing but its arguments.

Invariants: a `Settings` never changes, and what holds one needs to check nothing again. No message quotes a
secret.
"""

import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    StringConstraints,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from policies import registry
from proxy import keys_file, redis_url
from proxy.bounds import Limits, Probes, Timeouts
from proxy.canary_terms import CanaryTerms
from proxy.forwarded import Network, network
from proxy.found import Dns, Kubernetes
from proxy.insight import Breaks, Savings, Tracing
from proxy.priority import Priority, pairs
from proxy.spec import ReplicaSpec, Text, parse_replicas, split_commas
from proxy.tls import Tls

MASK = "**********"
"""What stands for a secret wherever settings are shown."""


def _networks(value: Any) -> Any:
    """`10.0.0.0/8, ::1` or a list, as networks."""
    value = split_commas(value)
    return [network(each) if isinstance(each, str) else each for each in value]


def _unless_off(value: Any) -> Any:
    return None if value == "off" else value


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)]


class Settings(BaseSettings):
    """Everything a person can set; what the docstrings say is what `--help` prints."""

    model_config = SettingsConfigDict(
        env_prefix="WARMROUTE_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    host: Text = "127.0.0.1"
    """address to listen on"""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """port to listen on; 0 takes any free one"""
    replicas: Annotated[tuple[ReplicaSpec, ...], BeforeValidator(parse_replicas)] = ()
    """comma-separated URLs, or JSON objects
    {"url", "name", "engine": "vllm"|"sglang"|"llama_cpp"|"openai", "model", "capacity" (KV blocks),
    "block_size", "max_seqs", "priority": "low_first"|"high_first" (which values its engine takes first,
    if it schedules by priority), "server_name" (that its certificate is for, if not the URL's host),
    "ranks" (data-parallel ranks behind the URL, each then a replica of its own, NAME@RANK),
    "kv_events" and "kv_replay" (tcp://host:port, of the engine's KV events and of their replay)}; what is
    absent is asked of the replica"""
    discovery: Literal["static", "dns", "kubernetes"] = "static"
    """where replicas come from beside /admin/replicas. static: `replicas` are the fleet, and one named by
    host follows its address; dns: hosts in `replicas` are names, as of headless services, and each address
    behind one is a replica of its own; kubernetes: the pods behind kubernetes.service, and `replicas`"""
    dns: Dns = Dns()
    kubernetes: Kubernetes = Kubernetes()
    redis_url: str = Field("embedded", repr=False)
    """where proxies share their index: redis://user:password@host:port/db, rediss:// (TLS; with
    ?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE as in redis-py), redis+sentinel://host:port,…/service,
    redis+cluster://host:port,…; embedded: a private Valkey, run by this process; none: the index is this
    process's alone"""
    redis_timeout_ms: PositiveFloat = 2.0
    """milliseconds that anything on a request's path may wait for Redis; today nothing there waits for it"""
    namespace: Name = "warmroute"
    """proxies that share it share an index"""
    secret: SecretStr = Field(default_factory=lambda: SecretStr(secrets.token_hex(32)))
    """seeds the block keys: the same for all proxies on a shared Redis, and required there; else made anew at
    each start when absent"""
    secret_file: Path | None = None
    """file that holds the secret"""
    upstream_api_key: SecretStr | None = None
    """key for the proxy's own calls to replicas; clients' credentials are forwarded as they came"""
    upstream_api_key_file: Path | None = None
    """file that holds that key"""
    replace_auth: bool = False
    """true: send upstream_api_key in place of the client's credential, on every route"""
    aliases: Annotated[dict[str, str], BeforeValidator(pairs("model"))] = {}
    """name=model,…: clients ask for name, replicas are asked for model"""
    timeouts: Timeouts = Timeouts()
    policy: str = "prefix_cost"
    """how a replica is chosen; `warmroute policies` lists them"""
    policy_params: dict[str, Any] = {}
    """parameters of that policy"""
    canary: CanaryTerms = CanaryTerms()
    shadow: Annotated[tuple[Text, ...], BeforeValidator(split_commas)] = ()
    """policies, comma-separated, that are asked about every request without touching it: each keeps an index
    of its own of what replicas would hold under it, as large as theirs, and /admin/shadow and /metrics tell
    what it would have found cached"""
    breaks: Breaks = Breaks()
    savings: Savings = Savings()
    tokenizer: Text = "auto"
    """auto (the model's own, else bytes), bytes (none), engine (ask the replica), a directory, or a hub id"""
    tokenizer_budget_ms: NonNegativeFloat = 50.0
    """milliseconds that keying a cold prompt may take; after that, what is keyed so far is used"""
    block_size: PositiveInt | Literal["auto"] = "auto"
    """tokens per block; auto: the engine's"""
    limits: Limits = Limits()
    priority: Priority = Priority()
    cache_mb: PositiveInt = 96
    """megabytes for the tokens and keys of prompts seen lately"""
    tracing: Tracing = Tracing()
    record: Annotated[Path | None, BeforeValidator(_unless_off)] = None
    """file for a trace of the traffic that can be replayed: Mooncake's JSON lines, with times, lengths and
    blocks as numbers, and no text; several workers write a trace each, FILE with .w0, .w1, … before its
    suffix; off if not set"""
    record_mb: PositiveInt = 1024
    """megabytes that the trace may take on disk; its oldest part goes first"""
    groups: Annotated[tuple[Name, ...], BeforeValidator(split_commas)] = ("shared", "random")
    """traffic groups that the header X-Warmroute-Group may name"""
    stream_usage: Literal["auto", "never"] = "auto"
    """auto: learn cached_tokens also of streams that did not ask for usage; never: leave bodies alone"""
    passthrough: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^/[^\s?#]*$")], ...], BeforeValidator(split_commas)
    ] = ()
    """more paths, comma-separated, that are passed to a replica by load"""
    api_keys_file: Path | None = None
    """YAML or JSON file with who may call, at which class and rates, made of the lines that `warmroute key`
    prints; read again when it changes. With it, clients' credentials end here, and replicas get
    upstream_api_key or none"""
    salt_per_key: bool = False
    """true: each API key has a cache of its own, kept apart in the engines too, by cache_salt; what an engine
    cannot keep apart is refused"""
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(_networks)] = ()
    """addresses and networks, comma-separated, of proxies whose X-Forwarded-For counts; X-Forwarded-* of
    others is not passed on"""
    tls: Tls = Tls()
    admin_token: SecretStr | None = None
    """who shows it may call /admin; without it, only callers on this machine, if host is loopback"""
    admin_token_file: Path | None = None
    """file that holds that token"""
    probes: Probes = Probes()
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """processes on one port, as many as cores can be spared; one more runs the embedded Valkey and starts
    anew whichever ends. Queues and caches are set for all of them together"""
    shutdown_delay: NonNegativeFloat = 3.0
    """seconds between SIGTERM, from which on /ready says 503, and the end of accepting connections: for load
    balancers to notice; SIGINT skips it"""
    shutdown_grace: NonNegativeFloat = 30.0
    """seconds that requests get after that before they are ended; a second signal ends them at once"""
    log_format: Literal["text", "json"] = "text"
    """one line a request, as text or as JSON"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """the least that is logged"""

    @classmethod
    def settings_customise_sources(  # noqa: D102 - see the module's docstring
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, value: Any) -> Any:
        value = dict(value)
        for name in ("secret", "upstream_api_key", "admin_token"):
            if (path := value.get(f"{name}_file")) is None:
                continue
            if value.get(name) is not None:
                raise ValueError(f"{name} and {name}_file are both set: keep one of them")
            try:
                value[name] = Path(path).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError, TypeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not a text file"
                raise ValueError(
                    f"{name}_file cannot be read ({path}: {why}): name a readable file"
                ) from None
        return value

    @field_validator("secret", "upstream_api_key", "admin_token")
    @classmethod
    def _real_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value()
        if not text or text == MASK:
            raise ValueError("is empty or the mask that --print-config prints; give the secret itself")
        if not text.isascii() or not text.isprintable():
            raise ValueError("should be printable ASCII on one line")
        return value

    @field_validator("redis_url")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        if MASK in value:
            raise ValueError("holds the mask that --print-config prints; give the password itself")
        redis_url.parse(value)
        return value.strip()

    @field_serializer("redis_url", when_used="json")
    def _without_passwords(self, value: str) -> str:
        return redis_url.masked(value, MASK)

    @field_validator("replicas")
    @classmethod
    def _distinct(cls, value: tuple[ReplicaSpec, ...]) -> tuple[ReplicaSpec, ...]:
        for what in ("url", "name"):
            seen: set[str] = set()
            for replica in value:
                if (it := getattr(replica, what)) in seen:
                    raise ValueError(f"names the {what} {it} twice; name each replica once")
                seen.add(it)
        return value

    @field_validator("record")
    @classmethod
    def _place_to_record(cls, value: Path | None) -> Path | None:
        if value is not None:
            if value.is_dir():
                raise ValueError("is a directory; name a file in it")
            if not os.access(value if value.exists() else value.parent, os.W_OK):
                raise ValueError("cannot be written; name a file in a directory that is there and writable")
        return value

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer_there(cls, value: str) -> str:
        if value.startswith(("/", "./", "../", "~")) and not Path(value).expanduser().is_dir():
            raise ValueError("looks like a directory, and there is none; name one that holds tokenizer.json")
        return value

    def _check_keys(self, path: Path) -> None:
        try:
            keys_file.read(path, classes=self.priority.classes, usual=self.priority.default)
        except ValueError as error:
            raise ValueError(f"api_keys_file {error}") from None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        registry.create(self.policy, self.policy_params)
        for name in self.shadow:
            registry.create(name)
        if self.api_keys_file is not None:
            self._check_keys(self.api_keys_file)
        elif self.salt_per_key:
            raise ValueError("salt_per_key needs keys: set api_keys_file")
        if self.replace_auth and self.upstream_api_key is None:
            raise ValueError("replace_auth needs a key to send: set upstream_api_key")
        if self.tracing.endpoint is not None and find_spec("opentelemetry") is None:
            raise ValueError("tracing.endpoint needs an extra: pip install 'warmroute[tracing]'")
        if self.discovery == "kubernetes":
            if self.kubernetes.service is None:
                raise ValueError("discovery=kubernetes follows a service: set WARMROUTE_KUBERNETES__SERVICE")
            if find_spec("kubernetes_asyncio") is None:
                raise ValueError("discovery=kubernetes needs an extra: pip install 'warmroute[kubernetes]'")
        if self.workers > 1 and self.redis_url.strip() == "none":
            raise ValueError("workers share their index through Redis: set redis_url to embedded or a URL")
        if redis_url.parse(self.redis_url).shared and "secret" not in self.model_fields_set:
            raise ValueError(
                "redis_url names a Redis that is shared, and every proxy on it needs the same secret: set "
                "WARMROUTE_SECRET or WARMROUTE_SECRET_FILE to one long random text on all of them"
            )
        return self
