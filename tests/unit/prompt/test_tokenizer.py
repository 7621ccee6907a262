"""When tiktoken may stand in for `tokenizers`, what is added around a text, and what cannot be loaded."""

import json
from array import array

import pytest
import tokenizers

from proxy.prompt import bpe
from proxy.prompt.prompts import Chat
from proxy.prompt.tokenizer import Tokenizer, TokenizerUnavailable, ids, load
from tests.support.keying import TOKENIZER, loaded

SPEC = (TOKENIZER / "tokenizer.json").read_text()


def spec(**changes):
    """The small tokenizer's description, changed; `model__x` changes `x` of its model."""
    fields = json.loads(SPEC)
    for name, value in changes.items():
        inner = fields["model"] if name.startswith("model__") else fields
        inner[name.removeprefix("model__")] = value
    return fields


def build(**changes) -> Tokenizer:
    return Tokenizer(json.dumps(spec(**changes)).encode())


def test_the_small_tokenizer_is_tiktokens():
    tokenizer, template = loaded()
    assert (tokenizer.backing, template.engine) == ("tiktoken", "minijinja")
    assert (tokenizer.prefix, tokenizer.suffix) == (b"", b"")
    assert tokenizer.cuts.separator == "<|im_start|>"
    assert tokenizer.cuts.boundary is not None


def swapped(merges):
    return [merges[1], merges[0], *merges[2:]]


REFUSED = {
    "dropout": {"model__dropout": 0.1},
    "byte_fallback": {"model__byte_fallback": True},
    "end of word": {"model__end_of_word_suffix": "</w>"},
    "not BPE": {"model__type": "WordPiece"},
    "merges out of order": {"model__merges": swapped(spec()["model"]["merges"])},
    "a token no merge makes": {"model__merges": spec()["model"]["merges"][:-1]},
    "a byte that is missing": {
        "model__vocab": {k: v for k, v in spec()["model"]["vocab"].items() if v != 65}
    },
    "a prefix space": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
    "another splitter": {"pre_tokenizer": {"type": "Whitespace"}},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "lowercase": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}},
    "a token that strips": {"added_tokens": [spec()["added_tokens"][0] | {"lstrip": True}]},
    "a token that starts another": {
        "added_tokens": [spec()["added_tokens"][0], spec()["added_tokens"][1] | {"content": "<|endoftext|>!"}]
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tiktoken_might_compute_otherwise_is_left_to_tokenizers(name):
    assert bpe.convert(spec(**REFUSED[name])) is None


def test_whole_pieces_looked_up_first_need_no_merge():
    fields = spec(model__merges=spec()["model"]["merges"][:-1], model__ignore_merges=True)
    assert bpe.convert(fields) is not None


def test_the_probe_catches_what_the_structure_does_not_show():
    """A splitting rule that covers only letters: `tokenizers` keeps the rest as pieces, tiktoken drops it."""
    rule = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    }
    assert bpe.convert(spec(pre_tokenizer=rule)) is not None
    tokenizer = build(pre_tokenizer=rule)
    assert tokenizer.backing == "tokenizers"
    assert tokenizer.cuts.boundary is None
    assert tokenizer.encode("a 1 b") == tokenizer.encode_exactly("a 1 b")


def test_an_unknown_rule_that_is_equal_is_taken_but_nothing_is_cut_by_it():
    rule = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+|\\S+"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    }
    tokenizer = build(pre_tokenizer=rule)
    assert (tokenizer.backing, tokenizer.cuts.boundary) == ("tiktoken", None)


def test_gpt2s_rule_is_known():
    tokenizer = build(
        normalizer=None,
        pre_tokenizer={
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
    )
    assert tokenizer.backing == "tiktoken"
    assert tokenizer.cuts.boundary is not None


BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [4256], "tokens": ["<|endoftext|>"]},
        "<|im_end|>": {"id": "<|im_end|>", "ids": [4258], "tokens": ["<|im_end|>"]},
    },
}  # fmt: skip


def test_tokens_around_a_text_are_the_post_processors():
    tokenizer = build(post_processor=BOS)
    assert tokenizer.backing == "tiktoken"
    assert (ids(tokenizer.prefix), ids(tokenizer.suffix)) == ([4256], [4258])
    whole = tokenizers.Tokenizer.from_str(json.dumps(spec(post_processor=BOS))).encode("hi").ids
    assert ids(tokenizer.prefix + tokenizer.encode("hi") + tokenizer.suffix) == whole


def test_runs_that_overflow_tiktokens_regex_are_still_exact(monkeypatch):
    """A million spaces do, in tiktoken 0.14; the error stands in for them, as `tokenizers` takes seconds."""
    tokenizer = build()

    def overflows(text):
        raise ValueError("Max stack size exceeded for backtracking")

    monkeypatch.setattr(tokenizer, "_fast", overflows)
    text = "x" + " " * 3000 + "y"
    assert tokenizer.encode(text) == tokenizer.encode_exactly(text)


def test_without_a_template_there_is_no_separator(tmp_path):
    (tmp_path / "tokenizer.json").write_text(SPEC)
    tokenizer, template = load(tmp_path)
    assert template is None
    assert tokenizer.cuts.separator is None


@pytest.mark.parametrize("separator", ["nothing special", "<|im_start|> ", ""])
def test_only_an_added_token_separates(separator):
    tokenizer = build()
    tokenizer.cut_at(separator)
    assert tokenizer.cuts.separator is None


def test_a_separator_that_another_token_may_overlap_is_refused():
    added = spec()["added_tokens"]
    tokenizer = build(added_tokens=[*added, added[0] | {"id": 4282, "content": "start|><|"}])
    tokenizer.cut_at("<|im_start|>")
    assert tokenizer.cuts.separator is None


def test_a_template_may_be_in_the_configuration_and_have_names(tmp_path):
    (tmp_path / "tokenizer.json").write_text(SPEC)
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": [
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}"},
            {"name": "tool_use", "template": "{{ tools | length }}{{ eos_token }}"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    _, template = load(str(tmp_path))
    assert template is not None
    chat = Chat([{"role": "user", "content": "x"}])
    assert template.render(chat, str) == "<s>x"
    chat.tools = [{}, {}]
    assert template.render(chat, str) == "2</s>"


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nothing", "~nobody/x/y", "a/b/c"])
def test_T10_a_tokenizer_that_is_not_there_is_one_sentence_that_names_the_fix(name):
    with pytest.raises(TokenizerUnavailable, match=r"^There is no directory .*; name a directory that holds"):
        load(name)


def test_T10_an_unreachable_hub_is_one_sentence_that_names_the_fix(monkeypatch):
    import huggingface_hub

    def unreachable(*_, **__):
        raise OSError("a long story of sockets\nand urls")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(TokenizerUnavailable) as caught:
        load("org/model")
    assert str(caught.value) == (
        "The tokenizer of org/model could not be fetched; "
        "name a directory that holds its tokenizer.json, or make the hub reachable."
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "does not exist; name a directory"),
        ({"tokenizer.json": "{"}, "cannot be read"),
        ({"tokenizer.json": SPEC, "tokenizer_config.json": "{"}, "cannot be read"),
        ({"tokenizer.json": SPEC, "chat_template.jinja": "{% for"}, "cannot be read"),
    ],
)
def test_T10_broken_files_are_named(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerUnavailable, match=message):
        load(tmp_path)


def test_ids_are_little_endian_words():
    assert ids(array("I", [1, 2**31]).tobytes()) == [1, 2**31]
