"""The command line: what it starts, what it prints, how it refuses."""

import hashlib
import json
import subprocess
import sys
from importlib import metadata

import pytest
import yaml

import proxy.lifecycle
from policies import registry
from proxy import cli

REPLICA = ["--replicas", "http://one:8000"]


@pytest.fixture
def started(monkeypatch):
    """The settings that the proxy was started with, in place of starting it."""
    seen = []
    monkeypatch.setattr(proxy.lifecycle, "run", lambda settings: seen.append(settings) or 7)
    return seen


@pytest.mark.parametrize("command", [[], ["serve"]])
def test_serve_starts_the_proxy_and_passes_its_status_on(command, started):
    assert cli.main([*command, *REPLICA, "--port", "0", "--replace-auth", "--upstream-api-key=k"]) == 7
    (settings,) = started
    assert (settings.port, settings.replace_auth) == (0, True)


def test_without_arguments_the_environment_is_enough(started, monkeypatch):
    monkeypatch.setenv("WARMROUTE_REPLICAS", "http://one:8000")
    monkeypatch.setattr(sys, "argv", ["warmroute"])
    assert cli.main() == 7
    assert started[0].replicas[0].name == "one:8000"


@pytest.mark.parametrize("by_variable", [True, False])
def test_the_file_is_named_by_flag_or_variable(by_variable, started, monkeypatch, tmp_path):
    config = tmp_path / "w.yaml"
    config.write_text("replicas: ['http://one:8000']\nport: 0\n")
    if by_variable:
        monkeypatch.setenv("WARMROUTE_CONFIG", str(config))
    assert cli.main([] if by_variable else [f"--config={config}"]) == 7
    assert started[0].port == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no replica is named: set WARMROUTE_REPLICAS="),
        (["--check-config"], "no replica is named"),
        (["polices"], "'polices' is not a command: did you mean policies?"),
        (["xyzzy"], "there are serve, doctor, top, breaks, policies, key"),
        (["policies", "--all"], "takes no arguments"),
        ([*REPLICA, "--prot", "1"], "--prot is not a setting: did you mean --port?"),
        ([*REPLICA, "stray"], "'stray' is not understood"),
        ([*REPLICA, "-p", "1"], "'-p' is not understood"),
        ([*REPLICA, "--"], "'--' is not understood"),
        ([*REPLICA, *REPLICA], "--replicas is given twice"),
        ([*REPLICA, "--port"], "--port needs a value"),
        ([*REPLICA, "--port", "--host", "x"], "--port needs a value"),
        ([*REPLICA, "--policy-params.alpha"], "--policy-params.alpha needs a value"),
        ([*REPLICA, "--config"], "--config takes one file"),
        ([*REPLICA, "--config", "a", "--config", "b"], "--config takes one file"),
        ([*REPLICA, "--config", "/no/such"], "/no/such cannot be read"),
        ([*REPLICA, "--check-config=yes"], "takes no value"),
    ],
)
def test_refusals_are_one_sentence_and_status_2(arguments, words, capsys, started):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert not started
    assert err.startswith("warmroute: ")
    assert err.count("\n") == 1
    assert words in err


def test_an_empty_fleet_starts_if_replicas_can_be_added(started):
    assert cli.main(["--admin-token", "t"]) == 7
    assert started[0].replicas == ()


def test_check_config_starts_nothing(started, capsys):
    assert cli.main([*REPLICA, "--check-config"]) == 0
    assert not started
    assert capsys.readouterr().out == "the settings are valid\n"


def test_print_config_says_what_is_in_force_and_why(started, capsys, monkeypatch):
    monkeypatch.setenv("WARMROUTE_PORT", "9")
    assert cli.main([*REPLICA, "--print-config", "--admin-token", "hunter2"]) == 0
    assert not started
    out = capsys.readouterr().out
    assert "hunter2" not in out
    lines = {line.split(":")[0]: line for line in out.splitlines()}
    assert lines["port"].endswith("  # WARMROUTE_PORT")
    assert lines["replicas"].endswith("# --replicas")
    assert lines["host"].endswith("# default")
    assert lines["# secret"].endswith("# made at this start")
    assert lines["# admin_token"].startswith("# admin_token: '**********'")
    assert yaml.safe_load(out)["timeouts"]["connect"] == 2.0


def test_help_and_version(capsys):
    assert cli.main(["--help"]) == cli.main(["serve", "-h"]) == 0
    assert "WARMROUTE_TIMEOUTS__FIRST_BYTE" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"warmroute {metadata.version('warmroute')}\n"


def test_version_without_an_installation(capsys, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", missing)
    assert cli.main(["--version"]) == 0
    assert "checkout" in capsys.readouterr().out


def test_policies_lists_every_policy_with_its_parameters(capsys):
    assert cli.main(["policies"]) == 0
    out = capsys.readouterr().out
    for policy in registry.describe():
        assert f"{policy.name}: {policy.summary}" in out
        for parameter in policy.parameters:
            assert f"WARMROUTE_POLICY_PARAMS__{parameter.name.upper()}" in out
            assert f"(default: {parameter.default})" in out


@pytest.mark.parametrize(
    ("owners", "status"),
    [
        ({}, 7),
        ({"proxy": ["warmroute"], "policies": ["warmroute", "warmroute"]}, 7),
        ({"proxy": ["proxy.py", "warmroute"], "policies": ["warmroute"]}, 2),
        ({"policies": ["someone-elses"]}, 2),
    ],
)
def test_it_refuses_to_run_from_a_mixture_of_packages(owners, status, started, monkeypatch, capsys):
    monkeypatch.setattr(cli, "packages_distributions", lambda: owners)
    assert cli.main(REPLICA) == status
    if status == 2:
        assert "in an environment of its own" in capsys.readouterr().err


def test_module_and_reader_that_leaves():
    command = [sys.executable, "-m", "proxy", "policies"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"consistent_hash")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdout.close()
    assert run.stderr.read() == b""
    run.stderr.close()
    assert run.wait(30) == 0


def test_key_prints_the_line_for_the_file_and_says_the_key_aside(capsys):
    assert cli.main(["key", "team-a"]) == 0
    said = capsys.readouterr()
    (entry,) = yaml.safe_load(said.out)
    key = said.err.split()[-1]
    assert entry == {"name": "team-a", "sha256": hashlib.sha256(key.encode()).hexdigest()}


def test_breaks_lists_where_the_prompts_of_a_file_part(capsys, tmp_path):
    rest = "Answer what is asked, and nothing else. " * 20
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"It is 10:0{at}. {rest}"}) + "\n" for at in range(6)))
    assert cli.main(["breaks", str(file)]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("6 prompts; 1 break:")
    assert "timestamp at prompt, character 6: 5 requests" in out
    assert "Answer what" not in out
    assert cli.main(["breaks", str(file), "--windows", "--json", "--hours", "12"]) == 0
    (found,) = json.loads(capsys.readouterr()[0])["breaks"]
    assert (found["requests_per_day"], found["tokens_per_day"]) == (10, 2 * found["tokens"])
    assert (found["kind"], found["requests"], found["window"]) == ("timestamp", 5, "It is <timestamp>.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "takes a file"),
        (["a", "b"], "not understood"),
        (["--windows"], "takes a file"),
        (["a", "--widows"], "takes a file"),
        (["a", "--hours", "many"], "how many hours"),
        (["a", "--hours"], "how many hours"),
        (["a", "--hours", "-1"], "how many hours"),
        (["/no/such"], "read"),
    ],
)
def test_breaks_needs_one_file_that_can_be_read(capsys, arguments, words):
    assert cli.main(["breaks", *arguments]) == 2
    assert words in capsys.readouterr()[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "takes the caller's name"), (["a", "b"], "takes the caller's name"), (["a b"], "letters, digits")],
)
def test_key_needs_one_proper_name(capsys, arguments, words):
    assert cli.main(["key", *arguments]) == 2
    assert words in capsys.readouterr().err
