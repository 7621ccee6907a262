"""Settings: one name everywhere, one precedence, and a sentence for whatever is wrong."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as properties
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from proxy import keys_file
from proxy.config import MASK, Settings
from proxy.explain import effective, usage
from proxy.sources import (
    FIELDS,
    ConfigError,
    Loaded,
    flag,
    is_secret,
    load,
    read_file,
    read_flags,
    read_variables,
    variable,
)
from tests.support.certificates import Authority

REPLICA = "http://one:8000"


# A valid value that is not the default, for every setting there is; `{file}` is a file with a secret in it,
# the others are what they are called.
@pytest.fixture(autouse=True)
def _every_extra_is_there(monkeypatch):
    monkeypatch.setattr("proxy.config.find_spec", lambda _: object())


SAMPLES = {
    "host": "0.0.0.0",
    "port": "9000",
    "replicas": "http://one:8000,http://two:8000",
    "discovery": "dns",
    "dns.interval": "1",
    "dns.family": "ipv4",
    "kubernetes.service": "vllm",
    "kubernetes.namespace": "serving",
    "kubernetes.port": "http",
    "kubernetes.scheme": "https",
    "kubernetes.replica": '{{"engine": "vllm", "max_seqs": 8}}',
    "kubernetes.resync": "5",
    "kubernetes.kubeconfig": "/there",
    "redis_url": "none",
    "redis_timeout_ms": "1.5",
    "namespace": "other",
    "secret": "s1",
    "secret_file": "{file}",
    "upstream_api_key": "s2",
    "upstream_api_key_file": "{file}",
    "replace_auth": "false",
    "aliases": "small=qwen",
    "timeouts.connect": "1.5",
    "timeouts.first_byte": "10",
    "timeouts.idle": "20",
    "timeouts.keepalive": "3",
    "timeouts.client_keepalive": "30",
    "timeouts.request": "60",
    "policy": "round_robin",
    "tokenizer": "bytes",
    "tokenizer_budget_ms": "5",
    "block_size": "16",
    "limits.body_bytes": "1MiB",
    "limits.header_bytes": "4096",
    "limits.attempts": "2",
    "limits.retry_budget": "0.5",
    "limits.pool_size": "7",
    "limits.requests_per_minute": "600",
    "limits.tokens_per_minute": "2e6",
    "limits.concurrency": "32",
    "priority.classes": "standard,batch",
    "priority.default": "batch",
    "priority.weights": "interactive=3,standard=2",
    "priority.ceilings": "batch=0.5",
    "priority.prefill": "batch=0.1",
    "priority.urgency": "interactive=2",
    "priority.queue": "batch=10",
    "priority.wait": "batch=60.5",
    "priority.ageing": "2",
    "canary.policy": "round_robin",
    "canary.params": "alpha=0.5",
    "canary.replicas": "a,b",
    "canary.stages": "1,10,100",
    "canary.baseline_seconds": "0",
    "canary.settle_seconds": "5",
    "canary.stage_seconds": "60",
    "canary.window_seconds": "30",
    "canary.min_requests": "50",
    "canary.ttft": "1.5",
    "canary.errors": "0.02",
    "canary.hit_rate": "0.1",
    "canary.kv_usage": "0.2",
    "canary.automatic": "false",
    "shadow": "round_robin,least_load",
    "breaks.per_second": "5",
    "breaks.windows": "true",
    "savings.gpus_per_replica": "8",
    "savings.price_per_gpu_hour": "2.5",
    "savings.currency": "EUR",
    "savings.sample": "0.5",
    "cache_mb": "64",
    "tracing.endpoint": "http://collector:4318",
    "tracing.sample": "0.5",
    "record": "/dev/null",
    "record_mb": "64",
    "groups": "a,b",
    "stream_usage": "never",
    "passthrough": "/score",
    "api_keys_file": "{keys}",
    "salt_per_key": "true",
    "trusted_proxies": "10.0.0.0/8, ::1",
    "tls.cert": "{both}",
    "tls.key": "{key}",
    "tls.client_ca": "{cert}",
    "tls.upstream_ca": "{cert}",
    "tls.upstream_cert": "{both}",
    "tls.upstream_key": "{key}",
    "tls.upstream_verify": "false",
    "admin_token": "s3",
    "admin_token_file": "{file}",
    "probes.interval": "1",
    "probes.timeout": "1.5",
    "probes.misses": "5",
    "probes.recoveries": "2",
    "workers": "3",
    "shutdown_delay": "1",
    "shutdown_grace": "3",
    "log_format": "json",
    "log_level": "debug",
}


# What else must be set for that.
NEEDED = {
    "canary.params": {"canary.policy": "prefix_cost"},
    "salt_per_key": {"api_keys_file": "{keys}"},
    "tls.key": {"tls.cert": "{cert}"},
    "tls.client_ca": {"tls.cert": "{both}"},
    "tls.upstream_key": {"tls.upstream_cert": "{cert}"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The files that samples name."""
    directory = tmp_path_factory.mktemp("files")
    pair = Authority(directory).sign()
    found = {"file": directory / "secret", "keys": directory / "keys", "both": directory / "both"}
    found["file"].write_text("from a file\n")
    found["keys"].write_text(keys_file.make("a")[1])
    found["both"].write_text(pair.cert.read_text() + pair.key.read_text())
    return {**found, "cert": pair.cert, "key": pair.key}


def settings(
    flags: dict[str, str] | None = None,
    variables: dict[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    named = {"replicas": REPLICA} | (flags or {})
    return load(read_flags(named.items()), read_variables(variables or {}), file and read_file(file))


def refused(flags=None, variables=None, file=None) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(flags, variables, file)
    return str(caught.value)


def value_at(loaded: Loaded, path: str) -> object:
    found: object = loaded.settings
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_every_setting_has_a_sample_and_a_meaning():
    assert set(SAMPLES) == set(FIELDS)
    assert all(field.description for field in FIELDS.values())


@pytest.mark.parametrize("path", sorted(SAMPLES))
def test_one_name_everywhere(path, tmp_path, files):
    given = {path: SAMPLES[path]} | NEEDED.get(path, {})
    given = {name: sample.format(**files) for name, sample in given.items()}
    config = tmp_path / "w.yaml"
    nested: dict[str, object] = {}
    for each, sample in given.items():
        group, dot, name = each.partition(".")
        if dot:
            nested.setdefault(group, {})[name] = sample
        else:
            nested[each] = sample
    config.write_text(yaml.safe_dump(nested))
    empty = read_variables({})
    loads = [
        load(read_flags([(flag(name)[2:], sample) for name, sample in given.items()]), empty),
        load(read_flags([]), read_variables({variable(name): sample for name, sample in given.items()})),
        load(read_flags([]), empty, read_file(config)),
    ]
    first, second, third = (value_at(loaded, path) for loaded in loads)
    assert first == second == third
    assert [loaded.origins[path] for loaded in loads] == [flag(path), variable(path), f"`{path}` in {config}"]
    if path != "replace_auth":  # its other value needs another setting
        assert first != value_at(load(read_flags([]), empty), path)


def test_a_flag_wins_over_a_variable_a_variable_over_the_file_the_file_over_the_default(tmp_path):
    config = tmp_path / "w.yaml"
    config.write_text("host: f\nport: 1\ntimeouts: {connect: 1, idle: 1, first_byte: 1}\n")
    loaded = settings(
        {"host": "c", "timeouts.connect": "3"},
        {"WARMROUTE_HOST": "v", "WARMROUTE_PORT": "2", "WARMROUTE_TIMEOUTS__IDLE": "2"},
        config,
    )
    assert (loaded.settings.host, loaded.settings.port) == ("c", 2)
    timeouts = loaded.settings.timeouts
    assert (timeouts.connect, timeouts.idle, timeouts.first_byte, timeouts.keepalive) == (3, 2, 1, 4)


def test_built_in_code_reads_no_environment(monkeypatch):
    monkeypatch.setenv("WARMROUTE_PORT", "1")
    assert Settings().port == 8080


def test_settings_never_change():
    with pytest.raises(ValidationError):
        settings().settings.port = 1
    with pytest.raises(ValidationError):
        settings().settings.timeouts.idle = 1


def test_unknown_variable_names_the_nearest():
    assert refused(variables={"WARMROUTE_POLCY": "x"}) == (
        "WARMROUTE_POLCY is not a setting: did you mean WARMROUTE_POLICY?"
    )


def test_unknown_variable_in_lower_case_is_not_overlooked():
    assert "did you mean WARMROUTE_POLICY?" in refused(variables={"warmroute_polcy": "x"})
    assert settings(variables={"warmroute_port": "5"}).settings.port == 5


def test_unknown_flag_names_the_nearest():
    message = refused({"timeouts.conect": "1"})
    assert message == "--timeouts.conect is not a setting: did you mean --timeouts.connect?"


def test_unknown_key_of_the_file_names_the_nearest(tmp_path):
    config = tmp_path / "w.yaml"
    config.write_text("limits: {bodybytes: 1}\n")
    assert refused(file=config) == (
        f"`limits.bodybytes` in {config} is not a setting: did you mean `limits.body_bytes` in {config}?"
    )


def test_nothing_near_points_to_the_list():
    assert refused({"zzzzzzzz": "1"}).endswith("`warmroute --help` lists them all")


def test_unknown_policy_and_parameter_name_the_nearest():
    assert refused({"policy": "prefix_cots"}) == "--policy is 'prefix_cots': did you mean prefix_cost?"
    message = refused(variables={"WARMROUTE_POLICY_PARAMS__ALHPA": "1"})
    assert message.startswith("WARMROUTE_POLICY_PARAMS__ALHPA is '1': ")
    assert "did you mean 'alpha'?" in message
    assert "alpha" in refused({"policy-params.alpha": "lots"})


def test_policy_parameters_arrive_as_the_policy_takes_them():
    loaded = settings({"policy-params.alpha": "0.5"}, {"WARMROUTE_POLICY_PARAMS": '{"alpha": 3, "beta": 0}'})
    assert "alpha: 0.5" in effective(loaded)
    assert "beta: 0.0 " in effective(loaded)


def test_a_member_wins_over_its_group():
    loaded = settings(
        variables={"WARMROUTE_TIMEOUTS__IDLE": "2", "WARMROUTE_TIMEOUTS": '{"idle": 1, "connect": 1}'}
    )
    assert (loaded.settings.timeouts.idle, loaded.settings.timeouts.connect) == (2, 1)


def test_workers_need_something_to_share():
    assert settings({"workers": "4"}).settings.workers == 4
    assert "share their index through Redis" in refused({"workers": "2", "redis-url": "none"})
    assert "workers" in refused({"workers": "0"})


@pytest.mark.parametrize("given", [None, "embedded", "none"])
def test_a_redis_of_its_own_needs_no_secret(given):
    loaded = settings({"redis-url": given} if given else {})
    assert loaded.settings.redis_url == (given or "embedded")
    assert loaded.settings.secret.get_secret_value()


REDIS = [
    "redis://redis:6379/3",
    "rediss://:hunter2@redis",
    "redis+sentinel://u:hunter2@a:1,b:2/primary?sentinel_password=hunter2",
    "redis+cluster://u:hunter2@a:1,b:2",
]


@pytest.mark.parametrize("url", REDIS)
def test_a_shared_redis_needs_the_secret_that_its_proxies_share(url, tmp_path):
    message = refused({"redis-url": url})
    assert "every proxy on it needs the same secret: set WARMROUTE_SECRET or WARMROUTE_SECRET_FILE" in message
    assert "hunter2" not in message
    file = tmp_path / "secret"
    file.write_text("seed")
    for flags in ({"secret": "seed"}, {"secret-file": str(file)}):
        assert settings({"redis-url": url, **flags}).settings.redis_url == url


@pytest.mark.parametrize("url", REDIS[1:])
def test_the_password_of_redis_is_never_shown(url, tmp_path):
    loaded = settings({"redis-url": url, "secret": "seed"})
    shown = effective(loaded)
    assert "hunter2" not in shown + repr(loaded.settings) + str(loaded)
    assert url.replace("hunter2", MASK) in shown
    config = tmp_path / "w.yaml"
    config.write_text(shown)
    assert "holds the mask that --print-config prints" in refused({"secret": "seed"}, file=config)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:hunter2@one:0",
        "redis://one?ssl_password=hunter2",
        "redis+sentinel://a?sentinel_password=hunter2",
        "redis://hunter2@one",
        "http://u:hunter2@one",
        "redis://u:hunter2@one/x",
        "redis://u:hunter2@[one",
    ],
)
def test_a_wrong_redis_url_is_told_without_its_password(url):
    message = refused({"redis-url": url, "secret": "seed"})
    assert message.startswith("--redis-url")
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "65536"}, ("--port is '65536'", "65535")),
        ({"port": "http"}, ("--port is 'http'", "integer")),
        ({"timeouts.connect": "0"}, ("--timeouts.connect is '0'", "greater than 0")),
        ({"timeouts.connect": "inf"}, ("--timeouts.connect is 'inf'", "finite")),
        ({"timeouts": "3"}, ("--timeouts is '3'", "object with connect")),
        ({"timeouts": "{"}, ("--timeouts is '{'", "not valid JSON")),
        ({"block-size": "0"}, ("--block-size is '0'", "or should be 'auto'")),
        ({"limits.body-bytes": "much"}, ("--limits.body-bytes is 'much'", "64MiB")),
        ({"limits.retry-budget": "2"}, ("--limits.retry-budget is '2'",)),
        ({"log-level": "loud"}, ("--log-level is 'loud'", "'debug'")),
        ({"record": "/"}, ("--record is '/'", "name a file in it")),
        ({"record": "/nowhere/x.jsonl"}, ("cannot be written",)),
        ({"groups": "a,b c"}, ("--groups, entry 2 is 'b c'",)),
        ({"passthrough": "score"}, ("--passthrough, entry 1 is 'score'",)),
        ({"aliases": "a"}, ("--aliases is 'a'", "name=model")),
        ({"aliases": "a=b,a=c"}, ("--aliases", "'a' twice")),
        ({"aliases": "{"}, ("--aliases", "not valid JSON")),
        ({"replace-auth": "true"}, ("replace_auth", "set upstream_api_key")),
        ({"tokenizer": "./no/such"}, ("--tokenizer is './no/such'", "directory")),
        ({"secret-file": "/no/such"}, ("secret_file", "/no/such", "No such file")),
        ({"redis-timeout-ms": "0"}, ("--redis-timeout-ms is '0'", "greater than 0")),
        ({"redis-url": "redis"}, ("--redis-url is 'redis'", "embedded, none", "redis+cluster://")),
        ({"redis-url": "redis://one?dbb=1"}, ("'dbb'", "did you mean db?")),
        ({"replicas": "one:8000"}, ("url is 'one:8000'", "http://")),
        ({"replicas": "http://"}, ("http://host:port",)),
        ({"replicas": "http://one:0"}, ("port",)),
        ({"replicas": "http://one:99999"}, ("not a URL",)),
        ({"replicas": "http://one/v1"}, ("end after the port",)),
        ({"replicas": "http://one?x=1"}, ("end after the port",)),
        ({"replicas": "http://[::1"}, ("not a URL",)),
        ({"replicas": "http://one two"}, ("http://host:port",)),
        ({"replicas": "http://one,http://ONE/"}, ("url http://one twice",)),
        ({"replicas": "[{]"}, ("not valid JSON",)),
        ({"replicas": "[3]"}, ("--replicas, entry 1 is 3",)),
        ({"replicas": "{}"}, ("entry 1, url is required",)),
        ({"replicas": '{"url": "http://a", "enigne": "vllm"}'}, ("enigne", "did you mean engine?")),
        ({"replicas": '{"url": "http://a", "engine": "tgi"}'}, ("engine is 'tgi'", "'vllm'")),
        ({"replicas": '{"url": "http://a", "capacity": -1}'}, ("capacity is -1",)),
        ({"replicas": '{"url": "http://a", "name": "a/b"}'}, ("name is 'a/b'",)),
        ({"replicas": '{"url": "http://a", "kv_events": "a:5557"}'}, ("kv_events is 'a:5557'", "tcp://host")),
        ({"replicas": '{"url": "http://a", "kv_replay": "tcp://a:0"}'}, ("kv_replay is", "tcp://host:port")),
        ({"replicas": '{"url": "http://a", "kv_replay": "tcp://*:5557"}'}, ("binds", "replica's own host")),
        (
            {"replicas": '{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}'},
            ("name x twice",),
        ),
    ],
)
def test_a_wrong_value_is_one_sentence(flags, words):
    message = refused(flags)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_every_fault_is_told_at_once():
    message = refused({"port": "x", "log-level": "loud"})
    assert [line.partition(" ")[0] for line in message.splitlines()] == ["--port", "--log-level"]


@pytest.mark.parametrize("name", ["secret", "upstream_api_key", "admin_token"])
def test_secrets_come_from_a_file_and_are_never_shown(name, tmp_path):
    file = tmp_path / "key"
    file.write_text("hunter2\n")
    loaded = settings({f"{name}_file": str(file)})
    assert getattr(loaded.settings, name) == SecretStr("hunter2")
    given = settings({name: "hunter2"})
    for shown in (effective(loaded), effective(given), repr(loaded.settings), usage()):
        assert "hunter2" not in shown
    assert f"# {name}: '{MASK}'" in effective(loaded)
    assert "both set" in refused({name: "hunter2", f"{name}_file": str(file)})


@pytest.mark.parametrize("value", ["", MASK, "hunter2\nX-Header: 1", "hunter2\x00", "hünter2"])
@pytest.mark.parametrize("name", ["secret", "upstream_api_key", "admin_token"])
def test_what_cannot_be_a_secret_is_refused_and_not_quoted(name, value):
    message = refused({name: value})
    assert message.startswith(f"{flag(name)}: it ")
    assert "nter2" not in message


def test_credentials_in_a_replicas_url_are_refused_and_not_quoted():
    message = refused({"replicas": "http://user:hunter2@one:8000"})
    assert "upstream_api_key" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("content", [b"\xff\xfe", b""])
def test_a_secret_file_without_a_secret_is_refused(content, tmp_path):
    file = tmp_path / "key"
    file.write_bytes(content)
    assert "secret" in refused({"secret_file": str(file)})


def test_a_secret_is_made_when_none_is_given():
    first, second = (settings().settings.secret.get_secret_value() for _ in range(2))
    assert first != second
    assert len(first) >= 32


def test_replicas_as_urls_and_as_objects():
    (plain, other) = settings({"replicas": " http://One:8000/ , https://two"}).settings.replicas
    assert (plain.url, plain.name) == ("http://one:8000", "one:8000")
    assert (other.url, other.name) == ("https://two", "two")
    given = {"url": "http://a:1", "name": "a", "engine": "sglang", "model": "m", "capacity": 9}
    given |= {"priority": "high_first", "server_name": "a.example"}
    given |= {
        "block_size": 64,
        "max_seqs": 256,
        "ranks": 2,
        "kv_events": "tcp://a:5557",
        "kv_replay": "tcp://[::1]:5558",
    }
    for text in (json.dumps(given), json.dumps([given])):
        (replica,) = settings({"replicas": text}).settings.replicas
        assert replica.model_dump() == given
    mixed = settings({"replicas": '["http://b", {"url": "http://c"}]'}).settings.replicas
    assert [replica.name for replica in mixed] == ["b", "c"]


def test_what_kubernetes_puts_into_the_environment_is_no_setting():
    loaded = settings(
        variables={
            "WARMROUTE_PORT": "tcp://10.0.0.1:8080",
            "WARMROUTE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "WARMROUTE_PORT_8080_TCP_ADDR": "10.0.0.1",
            "WARMROUTE_SERVICE_HOST": "10.0.0.1",
            "WARMROUTE_SERVICE_PORT": "8080",
            "WARMROUTE_SERVICE_PORT_HTTP": "8080",
            "WARMROUTE_REDIS_PORT": "tcp://10.0.0.2:6379",
            "WARMROUTE_REDIS_SERVICE_HOST": "10.0.0.2",
        }
    )
    assert loaded.settings == settings({"secret": loaded.settings.secret.get_secret_value()}).settings


def test_an_empty_variable_counts_as_absent():
    assert settings(variables={"WARMROUTE_POLICY": "", "WARMROUTE_TEST_ENGINES": "x"}).settings.policy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- a\n", "should hold settings"),
        ("a: [\n", "not valid YAML (line 2"),
        ("port: {a: 1}\n", "`port` in"),
        ("timeouts: 3\n", "object with connect"),
        ("3: 4\n", "`3` in"),
    ],
)
def test_a_wrong_file_is_one_sentence(content, words, tmp_path):
    config = tmp_path / "w.yaml"
    config.write_text(content)
    message = refused(file=config)
    assert "\n" not in message
    assert words in message


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path):
    assert "No such file" in refused(file=tmp_path / "none.yaml")
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "text" in refused(file=binary)


@pytest.mark.parametrize("content", ["", "# nothing\n", "port: null\n"])
def test_an_empty_file_sets_nothing(content, tmp_path):
    config = tmp_path / "w.yaml"
    config.write_text(content)
    assert settings(file=config).settings.port == 8080


@properties(max_examples=50, deadline=None)
@given(
    port=st.integers(0, 65535),
    idle=st.floats(0.001, 1e9),
    alias=st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=3),
    group=st.lists(st.from_regex(r"\A[A-Za-z0-9._-]{1,9}\Z"), max_size=3),
    policy=st.sampled_from(["prefix_cost", "round_robin", "random"]),
)
@example(port=0, idle=1.0, alias={"null": "yes", "a: b": "#c"}, group=["no", "1"], policy="prefix_cost")
def test_what_is_printed_is_what_is_in_force(tmp_path_factory, *, port, idle, alias, group, policy):
    loaded = load(
        read_flags(
            {
                "port": str(port),
                "timeouts.idle": repr(idle),
                "aliases": json.dumps(alias),
                "groups": ",".join(group),
                "policy": policy,
                "replicas": json.dumps([{"url": REPLICA, "engine": "vllm", "capacity": 7}]),
                "secret": "seed",
                "limits.body-bytes": "3MiB",
            }.items()
        ),
        read_variables({}),
    )
    config = tmp_path_factory.mktemp("printed") / "w.yaml"
    config.write_text(effective(loaded), encoding="utf-8")
    again = load(read_flags([("secret", "seed")]), read_variables({}), read_file(config)).settings
    ours = loaded.settings.model_dump(exclude={"policy_params"})
    assert again.model_dump(exclude={"policy_params"}) == ours
    assert effective(loaded).count("\n") < 150  # one line a setting: it is to be read


@properties(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*SAMPLES, "policy_params.alpha", "timeouts", "nonsense"]), st.text(), max_size=3
    )
)
def test_no_text_gets_past_as_another_error(flags):
    with suppress(ConfigError):
        settings(flags)


def test_help_lists_every_setting_with_flag_variable_default_and_meaning():
    text = usage()
    for path, field in FIELDS.items():
        assert f"  {flag(path)}, {variable(path)}  (default: " in text
        assert " ".join(field.description.split())[:40] in " ".join(text.split())
    assert "--policy-params.NAME" in text
    assert f"(default: {8080})" in text


def test_secrets_are_known_as_such():
    assert [path for path in FIELDS if is_secret(path)] == ["secret", "upstream_api_key", "admin_token"]


def test_what_discovery_needs_is_asked_for():
    assert "WARMROUTE_KUBERNETES__SERVICE" in refused({"discovery": "kubernetes"})
    assert "url" in refused({"kubernetes.replica": '{"url": "http://one"}'})
    assert "engine" in refused({"kubernetes.replica": '{"engine": "other"}'})
    found = settings({"discovery": "kubernetes", "kubernetes.service": "vllm"}).settings.kubernetes
    assert (found.service, found.namespace, found.replica) == ("vllm", None, {})


def test_keys_that_cannot_be_used_stop_the_start(tmp_path, files):
    assert "cannot be read" in refused({"api_keys_file": str(tmp_path / "no")})
    assert "should hold a list of keys" in refused({"api_keys_file": str(files["file"])})
    keys = tmp_path / "keys"
    keys.write_text(keys_file.make("a")[1].replace("}", ", most: gold}"))
    assert "there are interactive, standard, batch" in refused({"api_keys_file": str(keys)})
    assert settings({"api_keys_file": str(keys), "priority.classes": "gold,standard"})
    assert "salt_per_key needs keys: set api_keys_file" in refused({"salt_per_key": "true"})


def test_certificates_that_cannot_be_used_stop_the_start(tmp_path, files):
    assert "set tls.cert" in refused({"tls.key": str(files["key"])})
    assert "No such file" in refused({"tls.cert": str(tmp_path / "no")})
    message = refused({"tls.cert": str(files["key"])})
    assert message.startswith("WARMROUTE_TLS")
    assert "lacks the certificate" in message


def test_a_network_that_is_none_is_named():
    assert "names '10.0.0.0/99', which is no address or network" in refused(
        {"trusted_proxies": "10.0.0.0/99"}
    )


def test_nothing_of_keys_and_certificates_is_printed_but_their_paths(files):
    loaded = settings(
        {"api_keys_file": str(files["keys"]), "tls.cert": str(files["cert"]), "tls.key": str(files["key"])}
    )
    shown = effective(loaded)
    for path in ("keys", "cert", "key"):
        assert str(files[path]) in shown
        for line in files[path].read_text().splitlines():
            assert line not in shown + repr(loaded)


def test_spans_need_their_extra(monkeypatch):
    monkeypatch.setattr("proxy.config.find_spec", lambda _: None)
    assert "pip install 'warmroute[tracing]'" in refused({"tracing.endpoint": "http://collector:4318"})
