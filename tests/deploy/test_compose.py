"""compose.yaml, the engines' manifests and the systemd unit, as far as YAML and the parsers of flags tell."""

import configparser
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import engine
from proxy.sources import load, read_flags, read_variables
from tests.support.dockerfile import STAGES
from tests.support.tools import ROOT, run, tool

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
ENGINES = sorted((DEPLOY / "engines").glob("*.yaml"))
by_engine = pytest.mark.parametrize("manifest", ENGINES, ids=lambda path: path.stem)


def test_what_was_asked_for_is_there():
    images = [service["image"] for service in SERVICES.values()]
    assert images.count("warmroute") == 2
    assert images.count("warmroute-simulated") == 3
    for part in ("valkey", "prometheus", "grafana"):
        assert part in SERVICES


def test_it_is_what_the_specification_knows(tmp_path):
    validate = tool("compose-validate")
    run(validate, DEPLOY / "compose.yaml")
    wrong = (DEPLOY / "compose.yaml").read_text().replace("stop_grace_period: 40s", "stop_grace_period: long")
    (tmp_path / "compose.yaml").write_text(wrong)
    with pytest.raises(AssertionError, match="duration"):
        run(validate, tmp_path / "compose.yaml")


def test_no_service_is_waited_for_that_is_not_there():
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= SERVICES.keys()


def test_every_file_that_is_mounted_is_in_the_checkout():
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    assert len(mounts) >= 6
    for mount in mounts:
        source, _, mode = mount.partition(":")[0], *mount.rpartition(":")[1:]
        assert (DEPLOY / source).exists(), source
        assert mode == "ro"


def test_the_images_are_targets_of_the_dockerfile():
    for service in SERVICES.values():
        if build := service.get("build"):
            assert (DEPLOY / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
            assert build.get("target", "warmroute") in STAGES


def test_the_proxies_take_their_settings():
    for name in ("proxy1", "proxy2"):
        environ = dict(SERVICES[name]["environment"])
        assert environ["WARMROUTE_SECRET"].startswith("${WARMROUTE_SECRET:?")
        environ["WARMROUTE_SECRET"] = "s" * 32
        (mount,) = SERVICES[name]["volumes"]
        directory, inside, _ = mount.split(":")
        assert environ["WARMROUTE_TOKENIZER"] == inside
        environ["WARMROUTE_TOKENIZER"] = str(DEPLOY / directory)
        settings = load(read_flags([]), read_variables(environ)).settings
        hosts = {replica.url.partition("//")[2].partition(":")[0] for replica in settings.replicas}
        assert hosts | {"valkey"} <= SERVICES.keys()
        grace = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace > settings.shutdown_delay + settings.shutdown_grace


def test_the_simulated_replicas_take_their_flags():
    (entry,) = (step.text for step in STAGES["simulated"] if step.name == "ENTRYPOINT")
    words = json.loads(entry)
    for name in ("replica1", "replica2", "replica3"):
        arguments = engine.parser().parse_args(
            [*words[words.index("engine") + 1 :], *SERVICES[name]["command"]]
        )
        assert (arguments.port, arguments.kv_events, arguments.kv_events_port) == (8000, "vllm", 5557)


def test_ports_are_open_on_this_machine_only():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == len({port.split(":")[1] for port in ports}) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_asks_the_proxies_that_there_are():
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    targets = [
        t for job in config["scrape_configs"] for each in job["static_configs"] for t in each["targets"]
    ]
    assert {target.partition(":")[0] for target in targets} == SERVICES.keys() - {
        "valkey",
        "prometheus",
        "grafana",
    }
    assert "warmroute" in {job["job_name"] for job in config["scrape_configs"]}


def test_grafana_finds_its_source_and_its_dashboard():
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "warmroute.yaml").read_text())["providers"]
    mounted = [mount.split(":")[1] for mount in SERVICES["grafana"]["volumes"]]
    assert any(mount.startswith(provider["options"]["path"] + "/") for mount in mounted)
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted


@by_engine
def test_an_engines_service_leads_to_its_pods(manifest: Path):
    objects = {each["kind"]: each for each in yaml.safe_load_all(manifest.read_text())}
    service, workload = objects["Service"], objects["StatefulSet"]
    template = workload["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"  # each pod is a replica of its own
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (port,) = service["spec"]["ports"]
    assert ports[port["targetPort"]] == port["port"]
    assert f"--port={port['port']}" in container["args"]
    if "NetworkPolicy" in objects:
        (rule,) = objects["NetworkPolicy"]["spec"]["ingress"]
        assert {each["port"] for each in rule["ports"]} == ports.keys()
        (peer,) = rule["from"]
        assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "warmroute"}


@by_engine
def test_an_engine_is_told_what_the_proxy_needs(manifest: Path):
    (container,) = next(
        each for each in yaml.safe_load_all(manifest.read_text()) if each["kind"] == "StatefulSet"
    )["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    needed = {
        "vllm": ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--scheduling-policy=priority"],
        "sglang": [
            "--enable-metrics",
            "--enable-cache-report",
            "--enable-priority-scheduling",
            "--page-size=16",
        ],
        "llama_cpp": ["--metrics", "--parallel=4"],
    }[manifest.stem]
    assert set(needed) <= set(arguments)
    published = [text for text in arguments if text.startswith("--kv-events-config=")]
    assert bool(published) == (manifest.stem != "llama_cpp")
    for text in published:
        config = json.loads(text.partition("=")[2])
        assert config["enable_kv_cache_events"]
        assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5558")
    if manifest.stem == "vllm":
        assert {"name": "VLLM_SERVER_DEV_MODE", "value": "1"} in container["env"]
        compile(container["lifecycle"]["preStop"]["exec"]["command"][2], "preStop", "exec")


@by_engine
def test_the_manifests_are_what_kubernetes_knows(manifest: Path):
    run(tool("kubernetes-validate"), "--strict", manifest)


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "systemd" / "warmroute.service").read_text())
    return parser


def test_the_unit_starts_a_command_there_is_and_lets_it_drain(unit):
    for what in ("ExecStart", "ExecStartPre"):
        program, command, *switches = shlex.split(unit["Service"][what])
        assert (program, command) == ("/opt/warmroute/bin/warmroute", "serve")
        assert set(switches) <= {"--check-config"}
    settings = load(read_flags([]), read_variables({"WARMROUTE_REPLICAS": "http://a:1"})).settings
    assert float(unit["Service"]["TimeoutStopSec"]) > settings.shutdown_delay + settings.shutdown_grace
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
    assert unit["Service"]["DynamicUser"] == "yes"


def test_systemd_accepts_the_unit(tmp_path):
    analyze = tool("systemd-analyze")
    text = (DEPLOY / "systemd" / "warmroute.service").read_text()
    (tmp_path / "warmroute.service").write_text(text.replace("/opt/warmroute/bin/warmroute", "/bin/true"))
    checked = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / "warmroute.service"], capture_output=True, text=True
    )
    said = [line for line in checked.stderr.splitlines() if re.search(r"warmroute\.service", line)]
    assert not said, said
