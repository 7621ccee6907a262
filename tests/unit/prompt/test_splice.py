"""The only changes to a body: every other byte stays."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.prompt.parse import splice_model, splice_stream_usage
from proxy.prompt.splice import splice_priority

ODD = (
    b' \n{ "big": 1234567890123456789, "e": 1e2, "u": "\\u00e9\\ud83d\\ude00", "z":[1 ,2],'
    b' "model" :  "m" , "nan": NaN}\t'
)


def test_H11_only_the_models_value_changes():
    assert splice_model(ODD, "other/model") == ODD.replace(b'"m"', b'"other/model"')


def test_H11_usage_is_asked_for_at_the_front_and_nothing_else_changes():
    spliced = splice_stream_usage(ODD)
    start = ODD.index(b"{") + 1
    assert spliced == ODD[:start] + b'"stream_options":{"include_usage":true},' + ODD[start:]


@pytest.mark.parametrize("body", [b"{}", b" { \n} "])
def test_usage_in_an_empty_object_is_still_json(body):
    assert json.loads(splice_stream_usage(body)) == {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a"}',
        b'{"x":{"model":"inner"},"model":"a","y":["model",{"model":1}]}',
        b'{"mode\\u006c":"a"}',
        b'{"model":null}',
        b'{"model":{"deep":[1,{"model":"}"}]}}',
        b'{"model":"a\\"},\\"model\\":\\"b"}',
        b'{"model":"a","b":1,"model":"c"}',
        b'{"model":1,"model":12,"model":"c","k":"model"}',
        b'\xef\xbb\xbf{"model":"a","x":"\\ud800"}',
    ],
)
def test_every_top_level_model_is_replaced_and_no_other(body):
    spliced = splice_model(body, 'n"e\u00e9w')
    text = body.removeprefix(b"\xef\xbb\xbf")
    assert json.loads(spliced) == json.loads(text) | {"model": 'n"e\u00e9w'}
    pairs = json.loads(spliced.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=list)
    before = json.loads(text, object_pairs_hook=list)
    assert [(k, 'n"e\u00e9w') if k == "model" else (k, v) for k, v in before] == pairs


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'["model"]', b'{"a":1}', b"\xff", b'{"a":{"model":"x"}}', b"{1}"]
)
def test_what_has_no_model_to_replace_stays(body):
    assert splice_model(body, "x") == body


def test_a_body_of_countless_fields_is_left_alone():
    """The backend will not know the alias; but nobody waits for a search of megabytes."""
    body = b"{" + b",".join([b'"model":1'] * 5000) + b"}"
    assert splice_model(body, "x") == body
    few = b"{" + b",".join([b'"model":1'] * 1000) + b"}"
    assert splice_model(few, "x") == few.replace(b"1", b'"x"')


@pytest.mark.parametrize(
    ("body", "without", "with_5"),
    [
        (b"{}", b"{}", b'{"priority":5}'),
        (b'{"a": 1}', b'{"a": 1}', b'{"priority":5,"a": 1}'),
        (b'{"priority":3}', b"{}", b'{"priority":5}'),
        (b'{ "priority":3 , "a":1 }', b'{  "a":1 }', b'{"priority":5,  "a":1 }'),
        (b'{"a":1, "priority" : "x", "b":2}', b'{"a":1, "b":2}', b'{"priority":5,"a":1, "b":2}'),
        (b'{"priority":1,"a":0,"priority":2}', b'{"a":0}', b'{"priority":5,"a":0}'),
        (b'{"pri\\u006frity":1,"b":{"priority":2}}', b'{"b":{"priority":2}}', None),
        (b'\xef\xbb\xbf {"priority":null}', b"\xef\xbb\xbf {}", b'\xef\xbb\xbf {"priority":5}'),
        (b'{"priority":[1,{"a":"}"}],"s":",priority"}', b'{"s":",priority"}', None),
    ],
)
def test_Q02_a_priority_is_set_or_taken_out(body, without, with_5):
    assert splice_priority(body, None) == without
    if with_5 is not None:
        assert splice_priority(body, 5) == with_5
    assert json.loads(splice_priority(body, -5)) == json.loads(without) | {"priority": -5}


def test_Q02_everything_else_in_a_body_stays_as_it_came():
    assert splice_priority(ODD, None) is ODD
    start = ODD.index(b"{") + 1
    assert splice_priority(ODD, 1) == ODD[:start] + b'"priority":1,' + ODD[start:]
    many = b"{" + b",".join([b'"priority":1'] * 5000) + b"}"
    assert splice_priority(many, 2) == splice_priority(many, None) == many


_NAMES = st.sampled_from(["priority", "a", "b", "priority ", "", "Priority"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(_NAMES, _VALUES), max_size=8),
    st.sampled_from(["", " ", "\n\t"]),
    st.none() | st.integers(-3, 3),
)
def test_Q02_of_any_object_only_the_priority_changes(pairs, space, priority):
    fields = f"{space},{space}".join(f"{json.dumps(k)}{space}:{space}{json.dumps(v)}" for k, v in pairs)
    body = f"{space}{{{space}{fields}{space}}}{space}".encode()
    spliced = json.loads(splice_priority(body, priority), object_pairs_hook=lambda pairs: pairs)
    before = json.loads(body, object_pairs_hook=lambda pairs: pairs)
    kept = [(name, value) for name, value in before if name != "priority"]
    assert spliced == ([] if priority is None else [("priority", priority)]) + kept
