"""The Helm chart: its values, its schema and its templates agree, and what comes out is what should run.

The first half needs nothing but YAML; the second half runs helm itself, and is skipped where it is missing.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.sources import FIELDS, GROUPS, load, read_file, read_flags, read_variables
from tests.support.tools import ROOT, run, tool

CHART = ROOT / "deploy" / "helm" / "warmroute"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
SETS = sorted((CHART / "ci").glob("*.yaml"))
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
USED = {path for text in TEMPLATES.values() for path in re.findall(r"\.Values\.([A-Za-z_.]+)", text)}
SECRET = {"WARMROUTE_SECRET": "a secret of the tests"}
by_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)


def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Path to value; an empty object is a leaf, since what is in it is free."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def schema_at(path: str) -> dict[str, Any] | None:
    """The schema of a value, or None where there may be none."""
    at = SCHEMA
    for name in path.split("."):
        if "properties" not in at:
            return at  # free from here on
        if name not in at["properties"]:
            return None
        at = at["properties"][name]
    return at


def test_every_value_that_a_template_reads_has_a_default():
    paths = leaves(VALUES)
    groups = {path.rsplit(".", count)[0] for path in paths for count in range(1, path.count(".") + 1)}
    free = {"config.redis_url", "config.replicas"}  # settings of the proxy, which the chart must know of
    assert free < USED
    assert USED - free <= set(paths) | groups


def test_every_value_is_read_by_a_template():
    for path in leaves(VALUES):
        parents = [path.rsplit(".", count)[0] for count in range(path.count(".") + 1)]
        assert USED.intersection(parents), f"nothing reads {path}"


def test_the_schema_knows_every_value_and_refuses_others():
    for path in leaves(VALUES):
        assert schema_at(path) is not None, path
    assert schema_at("replicas") is None
    assert schema_at("valkey.persistence") is None

    def closed(schema: dict[str, Any]) -> bool:
        return "properties" not in schema or (
            schema["additionalProperties"] is False and all(map(closed, schema["properties"].values()))
        )

    assert closed(SCHEMA)


@by_set
def test_a_value_set_holds_what_the_schema_knows(values: Path):
    for path in leaves(yaml.safe_load(values.read_text())):
        assert schema_at(path) is not None, path


def test_what_the_chart_derives_are_settings():
    text = TEMPLATES["configmap.yaml"]
    derived = set(re.findall(r'(?:dict|set \$derived) "(\w+)"', text)) | set(
        re.findall(r' "(\w+)" (?:8080|"json"|\.Values)', text)
    )
    assert {"host", "port", "discovery", "redis_url", "shutdown_grace"} <= derived
    of_kubernetes = {name for name in derived if f"kubernetes.{name}" in FIELDS} | {"service", "namespace"}
    assert derived - of_kubernetes - {"port"} <= set(FIELDS) | set(GROUPS)


@by_set
def test_the_settings_of_a_value_set_are_settings(values: Path, tmp_path: Path):
    config = yaml.safe_load(values.read_text()).get("config", {})
    if "tokenizer" in config:
        config["tokenizer"] = str(tmp_path)
    environ = SECRET | ({"WARMROUTE_UPSTREAM_API_KEY": "k"} if "replace_auth" in config else {})
    (tmp_path / "warmroute.yaml").write_text(yaml.safe_dump(config))
    load(read_flags([]), read_variables(environ), read_file(tmp_path / "warmroute.yaml"))


def test_variables_of_the_deployment_are_settings():
    named = set(re.findall(r"name: (WARMROUTE_\w+)", TEMPLATES["deployment.yaml"])) - {"WARMROUTE_CONFIG"}
    assert len(named) == 5
    assert {name.removeprefix("WARMROUTE_").lower() for name in named} <= set(FIELDS)


def rendered(*arguments: str | Path) -> list[dict[str, Any]]:
    text = run(tool("helm"), "template", "wr", CHART, "--namespace", "llm", *arguments)
    return [each for each in yaml.safe_load_all(text) if each is not None]


def only(objects: list[dict[str, Any]], kind: str, name: str = "wr-warmroute") -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


@by_set
def test_helm_lints_it(values: Path):
    run(tool("helm"), "lint", CHART, "--strict", "--values", values)


@by_set
def test_what_comes_out_is_what_kubernetes_knows(values: Path, tmp_path: Path):
    validate = tool("kubernetes-validate")
    objects = rendered("--values", values)
    operators = {"ServiceMonitor", "PrometheusRule"}
    (tmp_path / "out.yaml").write_text(
        yaml.safe_dump_all([each for each in objects if each["kind"] not in operators])
    )
    for version in ("1.27", "1.37"):
        run(validate, "--strict", "--kubernetes-version", version, tmp_path / "out.yaml")


@by_set
def test_the_proxy_takes_the_settings_that_come_out(values: Path, tmp_path: Path):
    objects = rendered("--values", values)
    config = yaml.safe_load(only(objects, "ConfigMap")["data"]["warmroute.yaml"])
    if "tokenizer" in config:
        config["tokenizer"] = str(tmp_path)
    (tmp_path / "warmroute.yaml").write_text(yaml.safe_dump(config))
    environ = dict(os.environ, WARMROUTE_CONFIG=str(tmp_path / "warmroute.yaml"))
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        name = variable["name"]
        if name.endswith("_FILE"):
            (tmp_path / name).write_text("" if "KEYS" in name else "a secret")
            environ[name] = str(tmp_path / name)
        elif name == "WARMROUTE_REDIS_URL":
            environ[name] = "rediss://:p@redis.example:6380/0"
    if "WARMROUTE_API_KEYS_FILE" in environ:
        key = subprocess.run(
            [sys.executable, "-m", "proxy", "key", "a"], capture_output=True, text=True, cwd=ROOT, check=True
        )
        (tmp_path / "WARMROUTE_API_KEYS_FILE").write_text(key.stdout)
    command = [sys.executable, "-m", "proxy", "serve", "--check-config"]
    checked = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_object_of_a_fleet_is_there():
    objects = rendered("--values", CHART / "ci" / "fleet.yaml")
    kinds = {each["kind"] for each in objects}
    assert kinds >= {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PrometheusRule", "Role",
        "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor",
    }  # fmt: skip
    assert "HorizontalPodAutoscaler" in {
        each["kind"] for each in rendered("--values", CHART / "ci" / "managed.yaml")
    }
    role = only(objects, "Role")
    assert role["metadata"]["namespace"] == "serving"
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    (subject,) = only(objects, "RoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == ("wr-warmroute", "llm")
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert only(objects, "PrometheusRule")["spec"]["groups"] == rules["groups"]
    dashboard = only(objects, "ConfigMap", "wr-warmroute-dashboard")["data"]["warmroute.json"]
    assert json.loads(dashboard)["uid"] == "warmroute"


@by_set
def test_a_pod_is_confined_probed_and_drained(values: Path):
    objects = rendered("--values", values)
    deployment = only(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    config = yaml.safe_load(only(objects, "ConfigMap")["data"]["warmroute.yaml"])
    (_, pause) = container["lifecycle"]["preStop"]["exec"]["command"]
    drain = int(pause) + config["shutdown_delay"] + config["shutdown_grace"]
    assert pod["terminationGracePeriodSeconds"] > drain
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert only(objects, "Service")["spec"]["selector"] == selector
    for constraint in pod["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"] == selector


FLEET = ("--set", "fleet.service=vllm")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no engine is named: set fleet.service"),
        (FLEET, "several proxies need one Redis to share their index: set valkey.enabled"),
        ((*FLEET, "--set", "valkey.enabled=true"), "proxies on one Redis need one secret: make a Secret"),
        (
            (*FLEET, "--set", "valkey.enabled=true,secrets.name=s,secrets.keys.redisUrl=u"),
            "there are two of Redis: keep",
        ),
        ((*FLEET, "--set", "replicas=3"), "additional properties 'replicas' not allowed"),
        ((*FLEET, "--set", "config.secret=x,replicaCount=1"), "config"),
        ((*FLEET, "--set", "drain.graceSeconds=long"), "graceSeconds"),
    ],
)
def test_values_that_are_wrong_are_refused_in_a_sentence(arguments, sentence):
    command = [tool("helm"), "template", "wr", str(CHART), *arguments]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert sentence in refused.stderr


def test_the_version_is_the_packages():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version
