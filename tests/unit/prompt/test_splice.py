"""The only two changes to a body: every other byte stays."""

import json

import pytest

from proxy.prompt.parse import splice_model, splice_stream_usage

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
