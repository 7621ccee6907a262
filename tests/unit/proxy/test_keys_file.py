"""The file of API keys: what it may say, and that nothing of a broken one is used."""

import json
from hashlib import sha256

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy import keys_file
from proxy.keys_file import Caller

A, B = sha256(b"a").hexdigest(), sha256(b"b").hexdigest()


@pytest.fixture
def read(tmp_path):
    def write_and_read(text: str, **defaults):
        path = tmp_path / "keys.yaml"
        path.write_text(text)
        return keys_file.read(path, **defaults)

    return write_and_read


def callers(table):
    return dict(table.values())


def test_a_line_that_the_command_made_lets_its_key_in(read):
    key, line = keys_file.make("team-a")
    assert callers(read(line)) == {
        sha256(key.encode()).digest(): Caller("team-a", most="standard", sees_cache=False)
    }
    assert key not in line


def test_lines_follow_each_other(read):
    made = [keys_file.make(name) for name in ("a", "b", "on", "null", "1e5", "0x10")]
    table = read("".join(line for _, line in made))
    assert [caller.name for _, caller in table.values()] == ["a", "b", "on", "null", "1e5", "0x10"]
    assert len({key for key, _ in made}) == len(made)


def test_keys_have_256_random_bits():
    key, _ = keys_file.make("a")
    assert key.startswith("wr-")
    assert len(key) == 3 + 43  # base64 of 32 bytes


def test_everything_that_an_entry_may_say(read):
    entry = {
        "name": "a",
        "sha256": [A, B.upper()],
        "most": "interactive",
        "models": ["m", "n"],
        "requests_per_minute": 60,
        "tokens_per_minute": 2e6,
        "sees_cache": True,
    }
    caller = Caller("a", "interactive", frozenset({"m", "n"}), True, 60.0, 2e6)
    expected = {bytes.fromhex(A): caller, bytes.fromhex(B): caller}
    assert callers(read(yaml.safe_dump([entry]))) == expected
    assert callers(read(json.dumps([entry]))) == expected


def test_what_an_entry_does_not_say_is_the_least_or_the_setting(read):
    text = f"- {{name: a, sha256: {A}}}\n- {{name: b, sha256: {B}, requests_per_minute: 5}}\n"
    found = callers(
        read(text, classes=("gold", "tin"), usual="tin", requests_per_minute=10, tokens_per_minute=20)
    )
    assert found[bytes.fromhex(A)] == Caller("a", "tin", None, False, 10, 20)
    assert found[bytes.fromhex(B)] == Caller("b", "tin", None, False, 5, 20)


def test_a_model_is_allowed_by_name_and_none_by_everybody():
    some = Caller("a", models=frozenset({"m"}))
    assert [some.may_use(model) for model in ("m", "n", None)] == [True, False, False]
    assert [Caller("a").may_use(model) for model in ("m", None)] == [True, True]


BROKEN = {
    "": "a list of keys",
    "keys: []": "a list of keys",
    "[": "not valid YAML",
    "[" * 5000: "not valid YAML",
    "- a": "entry 1, an object with name and sha256",
    "- {name: a}": "of 'a', sha256 is missing",
    f"- {{sha256: {A}}}": "of entry 1, name is missing",
    f"- {{name: a, sha256: {A}}}\n- {{name: a, sha256: {B}}}": "names 'a' twice",
    f"- {{name: a, sha256: {A}}}\n- {{name: b, sha256: {A}}}": "holds a key of 'b' twice",
    f"- {{name: a, sha256: [{A}, {A}]}}": "holds a key of 'a' twice",
    "- {name: a, sha256: []}": "sha256 should be 64 hex digits",
    "- {name: a, sha256: 12}": "sha256 should be 64 hex digits",
    f"- {{name: a, sha256: {A[:-1]}}}": "sha256 should be 64 hex digits",
    f"- {{name: 'a b', sha256: {A}}}": "name should be up to 64",
    f"- {{name: a, sha256: {A}, most: best}}": "there are interactive, standard, batch",
    f"- {{name: a, sha256: {A}, mots: batch}}": "'mots' is not known: there are name",
    f"- {{name: a, sha256: {A}, tokens_per_minute: 0}}": "tokens_per_minute: input should be greater than 0",
    f"- {{name: a, sha256: {A}, tokens_per_minute: .inf}}": "tokens_per_minute: input should be a finite",
    f"- {{name: a, sha256: {A}, models: m}}": "models: ",
}


@pytest.mark.parametrize(("text", "why"), BROKEN.items(), ids=[str(at) for at in range(len(BROKEN))])
def test_a_broken_file_says_what_is_wrong(read, text, why):
    with pytest.raises(ValueError, match=r"keys\.yaml") as caught:
        read(text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert A not in str(caught.value), "a digest is no secret, and still nobody's business"


def test_a_key_that_was_put_where_its_digest_belongs_is_not_quoted(read):
    key, _ = keys_file.make("a")
    with pytest.raises(ValueError, match="64 hex digits") as caught:
        read(f"- {{name: a, sha256: {key}}}")
    assert key not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        keys_file.read(tmp_path / "no.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        keys_file.read(tmp_path)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "keys.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not a text file"):
        keys_file.read(tmp_path / "keys.yaml")


@pytest.mark.parametrize("name", ["", "a b", "a\n- {name: b}", 'a"', "é", "a" * 65, "{", "a#"])
def test_a_name_that_is_none_makes_no_key(name):
    with pytest.raises(ValueError, match="letters, digits"):
        keys_file.make(name)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.just(A),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "sha256", "most", "models", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_file_is_a_table_or_a_value_error(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(json.dumps(value))
    try:
        table = keys_file.read(path)
    except ValueError:  # and nothing else
        return
    assert all(digest.startswith(start) for start, (digest, _) in table.items())
