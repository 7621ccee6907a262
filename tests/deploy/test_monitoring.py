"""Rules and dashboard: valid, tested, and of nothing that the proxy does not export.

What is exported is read from the page of a real proxy, with the labels that its families declare.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.client import exchange
from tests.support.documents import DOCUMENTS
from tests.support.fixtures import serving
from tests.support.processes import proxy_process
from tests.support.tools import ROOT, run, tool
from tests.support.upstream import Upstream

DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "warmroute.json").read_text())
TARGET = {"job", "instance"}
"""Labels that Prometheus itself gives to what it scrapes."""
_NAME = re.compile(r"\b(?:[a-z]+:)?warmroute_\w+(?::\w+)?")
_SELECTOR = re.compile(r"((?:[a-z]+:)?warmroute_\w+(?::\w+)?|up)\s*\{([^}]*)\}")
_SUMMED = re.compile(r"\b(?:sum|min|max|avg|count)\s*\(")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def there(rules: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Every series there is, exported or recorded, to the labels that it may carry."""
    found = uvloop.run(exported())
    assert len(found) > 40
    for rule in rules:
        if "record" in rule:
            found[rule["record"]] = left(rule["expr"], found) - _listed("without", rule["expr"]) - {"le"}
    return found


async def exported() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    async with Upstream() as upstream, serving(upstream, discovery="dns") as proxy:
        page = bytes((await exchange(proxy.port, "GET", "/metrics")).body).decode()
        declared = {family.name: set(family._labelnames) for family in proxy.metrics._registry.collect()}
    for family in text_string_to_metric_families(page):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        for suffix in suffixes.get(family.type, ("",)):
            found[family.name + suffix] = declared[family.name] | ({"le"} if suffix == "_bucket" else set())
    return found | await exported_beside_workers()


async def exported_beside_workers() -> dict[str, set[str]]:
    """What the process above several workers adds."""
    async with proxy_process(["http://127.0.0.1:9"], "--workers", "2", redis_url="embedded") as process:
        await process.listening()
        page = bytes((await exchange(process.port, "GET", "/metrics")).body).decode()
    samples = [each for family in text_string_to_metric_families(page) for each in family.samples]
    return {each.name: set(each.labels) for each in samples if each.name.startswith("warmroute_worker")}


def queries() -> Iterator[tuple[str, str]]:
    """Every query there is, and where."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule.get("record") or rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            yield variable["name"], re.sub(r"label_values\((\w+), (\w+)\)", r"sum by (\2) (\1)", query)


def names(expression: str) -> set[str]:
    return set(_NAME.findall(expression))


def carried(expression: str, there: dict[str, set[str]]) -> set[str]:
    """The labels of what a query reads."""
    return TARGET.union(*(there.get(name, set()) for name in names(expression)))


def left(expression: str, there: dict[str, set[str]]) -> set[str]:
    """The labels of what it gives, or more."""
    if by := _listed("by", expression):
        return by
    return set() if _SUMMED.search(expression) else carried(expression, there)


def faults(expression: str, there: dict[str, set[str]]) -> list[str]:
    """What a query asks for that is not there."""
    found = [f"nothing exports {name}" for name in names(expression) if name not in there]
    for name, selector in _SELECTOR.findall(expression):
        if more := set(_LABEL.findall(selector)) - TARGET - there.get(name, set()):
            found.append(f"{name} has no {more}")
    if more := _listed("by|without|on", expression) - carried(expression, there):
        found.append(f"it groups by {more}")
    return found


def _listed(word: str, expression: str) -> set[str]:
    lists = re.findall(rf"\b(?:{word})\s*\(([^)]*)\)", expression)
    return {label.strip() for each in lists for label in each.split(",")} - {""}


def test_every_metric_and_label_that_is_asked_for_is_exported(there):
    asked = list(queries())
    assert len(asked) > 80
    assert not [(where, fault) for where, expression in asked for fault in faults(expression, there)]


@pytest.mark.parametrize(
    "expression",
    [
        "max(warmroute_replicas_up)",
        'warmroute_replica_up{model="m"} == 0',
        "sum by (user) (rate(warmroute_requests_total[5m]))",
        'fleet:warmroute_answer_errors:ratio5m{code="500"}',
        "rate(warmroute_requests[5m])",
    ],
)
def test_what_is_not_exported_would_be_noticed(expression, there):
    assert faults(expression, there)


def test_what_is_told_of_a_series_names_labels_that_it_has(rules, there):
    for rule in rules:
        for text in rule.get("annotations", {}).values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= left(rule["expr"], there), rule["alert"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= left(target["expr"], there), panel["title"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_metric_that_a_document_names_is_exported(name, there):
    told = names((ROOT / name).read_text())
    assert not {each for each in told if not any(each in (it, it.removesuffix("_bucket")) for it in there)}


def test_every_alert_says_what_is_wrong_and_has_a_runbook(rules):
    text = (DEPLOY / "README.md").read_text()
    alerts = [rule for rule in rules if "alert" in rule]
    assert len(alerts) > 15
    for rule in alerts:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert f"### {rule['alert']}\n" in text, f"{rule['alert']} has no runbook"
    headings = set(re.findall(r"^### (Warmroute\w+)$", text, re.MULTILINE))
    assert headings == {rule["alert"] for rule in alerts}


def test_every_alert_has_a_unit_test(rules):
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert fires == {rule["alert"] for rule in rules if "alert" in rule}


def test_the_bounds_that_rules_ask_for_are_bounds_of_the_histograms(rules):
    from proxy.metrics import TTFT_BUCKETS

    asked = {bound for rule in rules for bound in re.findall(r'le="([0-9.]+)"', rule["expr"])}
    assert asked
    assert asked <= {str(bound) for bound in TTFT_BUCKETS}


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_shows_what_an_operator_asks():
    rows = {panel["title"].lower() for panel in DASHBOARD["panels"] if panel["type"] == "row"}
    for word in ("shared against random", "waterfall", "policies and arms", "spread", "queue", "objectives"):
        assert any(word in row for row in rows), word
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    assert "Tokens from cache by replica" in titles


@pytest.mark.parametrize("command", ["rules", "config"])
def test_promtool_accepts_them(command):
    file = {"rules": "rules.yaml", "config": "prometheus.yaml"}[command]
    run(tool("promtool"), "check", command, file, cwd=DEPLOY / "prometheus")


def test_promtool_runs_their_unit_tests():
    run(tool("promtool"), "test", "rules", "rules_test.yaml", cwd=DEPLOY / "prometheus")


def test_promtool_would_notice(tmp_path: Path):
    """Turned round, an alert's threshold fails its test."""
    text = (DEPLOY / "prometheus" / "rules.yaml").read_text()
    broken = text.replace("warmroute_redis_up == 0", "warmroute_redis_up == 1")
    assert broken != text
    (tmp_path / "rules.yaml").write_text(broken)
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())
    tests["tests"] = [test for test in tests["tests"] if "Redis is away" in test["name"]]
    (tmp_path / "rules_test.yaml").write_text(yaml.safe_dump(tests))
    with pytest.raises(AssertionError, match="WarmrouteRedisDown"):
        run(tool("promtool"), "test", "rules", "rules_test.yaml", cwd=tmp_path)
