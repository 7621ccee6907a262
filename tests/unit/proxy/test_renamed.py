"""Settings that are called otherwise now: the old name works, is warned of, and is never silently ignored."""

import pytest

from proxy import cli, sources
from proxy.sources import ConfigError, load, read_file, read_flags, read_variables


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"patience": "timeouts.idle", "limits.tries": "limits.attempts", "swap_auth": "replace_auth"}
    for old, new in names.items():
        monkeypatch.setitem(sources.RENAMED, old, new)


def test_an_old_name_sets_what_is_called_otherwise_now(tmp_path):
    file = tmp_path / "warmroute.yaml"
    file.write_text("limits: {tries: 7}\n")
    loaded = load(read_flags([]), read_variables({"WARMROUTE_PATIENCE": "60"}), read_file(file))
    assert (loaded.settings.timeouts.idle, loaded.settings.limits.attempts) == (60, 7)
    told = "now, and the old name will go: rename it"
    assert loaded.warnings == [
        f"`limits.tries` in {file} is called `limits.attempts` in {file} {told}",
        f"WARMROUTE_PATIENCE is called WARMROUTE_TIMEOUTS__IDLE {told}",
    ]


def test_the_new_name_is_not_warned_of():
    loaded = load(read_flags([("timeouts.idle", "60")]), read_variables({}))
    assert loaded.settings.timeouts.idle == 60
    assert not loaded.warnings


@pytest.mark.parametrize("order", [1, -1])
def test_both_names_in_one_source_are_refused(order):
    pairs = [("patience", "60"), ("timeouts.idle", "70")][::order]
    with pytest.raises(ConfigError, match=r"one setting under two names: keep --timeouts\.idle"):
        read_flags(pairs)


def test_a_flag_under_its_new_name_wins_over_a_variable_under_its_old_one():
    variables = read_variables({"WARMROUTE_PATIENCE": "60"})
    assert load(read_flags([("timeouts.idle", "70")]), variables).settings.timeouts.idle == 70


def test_a_switch_that_was_renamed_is_a_switch():
    loaded = load(read_flags([("swap_auth", None), ("upstream_api_key", "k")]), read_variables({}))
    assert loaded.settings.replace_auth is True
    with pytest.raises(ConfigError, match="needs a value"):
        read_flags([("patience", None)])


def test_the_command_line_says_so_and_goes_on(capsys):
    assert cli.main(["serve", "--patience", "60", "--replicas", "http://a:1", "--check-config"]) == 0
    said = capsys.readouterr()
    assert (
        said.err
        == "warmroute: --patience is called --timeouts.idle now, and the old name will go: rename it\n"
    )
    assert said.out == "the settings are valid\n"
