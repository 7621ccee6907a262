"""Templates: which renderer, which form of content, and that nothing but Unreadable comes out."""

import pytest

from proxy.prompt.prompts import Chat, Unreadable
from proxy.prompt.template import Compiled, Template
from tests.support.keying import loaded

USER = {"role": "user", "content": "x"}
TEXT = {"type": "text", "text": "q "}


def render(source: str, *messages, **fields) -> str:
    return Template(source).render(Chat(list(messages or [USER]), **fields), lambda _: "MARK")


def parts(body: str) -> str:
    return Compiled(body, {}).parts


EACH = "{% for m in messages %}"
MACRO = "{% macro f(c) %}{% for i in c %}{% endfor %}{% endmacro %}" + EACH
PARTS = "{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (EACH + "{{ m.content }}{% endfor %}", "string"),
        (EACH + PARTS, "openai"),
        (EACH + "{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for c in m.content|list %}{{ c }}{% endfor %}{% endfor %}", "openai"),
        ("{% set ms = messages %}{% for m in ms %}" + PARTS, "openai"),
        (EACH + "{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}", "openai"),
        (MACRO + "{{ f(m.content) }}{% endfor %}", "openai"),
        (MACRO + "{{ f(c=m.content) }}{% endfor %}", "openai"),
        (MACRO + "{{ f(m.role) }}{% endfor %}", "string"),
        ("{% macro f(content) %}{% for i in content %}{% endfor %}{% endmacro %}{{ messages[0] }}", "string"),
        (EACH + "{% for t in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
        ("{% for i, m in messages %}" + PARTS, "string"),
    ],
)
def test_the_form_of_content_is_found_as_vllm_finds_it(source, form):
    assert parts(source) == form


def test_a_template_that_loops_over_content_gets_parts():
    source = EACH + "{% for c in m.content %}<{{ c.type }}:{{ c.text }}{{ c.extra }}>{% endfor %}{% endfor %}"
    content = [
        {"type": "text", "text": "a", "extra": 1},
        "b",
        {"type": "input_text", "text": "", "name": "n"},
    ]
    assert render(source, {"role": "user", "content": content}) == "<text:a1><text:b><text:>"
    assert render(source, USER) == "<text:x>"
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert render(source, {"role": "user", "content": [image]}) == "<text:MARK>"


def test_media_stand_before_the_text_of_a_template_that_knows_none():
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}, "b"]
    assert render("{{ messages[0].content }}", {"role": "user", "content": content}) == "MARK\na\nb"


def test_minijinja_gives_way_where_it_prints_otherwise():
    """It writes large numbers out; a template that prints a call's arguments plainly would show it."""
    calls = EACH + "{% for t in m.tool_calls %}{{ t.function.arguments BODY }}{% endfor %}{% endfor %}"
    assert Template(calls.replace("BODY", "| tojson")).engine == "minijinja"
    plainly = calls.replace(" BODY", ".far")
    assert Template(plainly).engine == "jinja2"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"far": 1e22}'}}
    message = {"role": "assistant", "tool_calls": [call]}
    assert render(plainly, message) == "1e+22"


def test_generation_blocks_and_loop_controls_are_known():
    stop = "{% if loop.index > 1 %}{% break %}{% endif %}"
    source = EACH + stop + "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(source, USER, USER) == "x"


def test_json_is_written_as_transformers_writes_it():
    arguments = {"b": "<é>&'", "a": [1.0, 1e22, 2**70, None, True]}
    source = "{{ arguments | tojson }}"
    expected = '{"b": "<é>&\'", "a": [1.0, 1e+22, 1180591620717411303424, null, true]}'
    assert render(source, variables={"arguments": arguments}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 // 0 }}",
        "{{ messages.x.y }}",
        "{{ messages[0].content + 1 }}",
        "{% for x in 5 %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__()[0] }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_a_template_that_raises_is_unreadable(source):
    with pytest.raises(Unreadable):
        render(source)


def test_a_trusted_foreign_template_with_bad_syntax_is_unreadable():
    template = Template("x", trust_requests=True)
    with pytest.raises(Unreadable):
        template.render(Chat([USER], template="{% for"), str)


@pytest.mark.parametrize("role", ["developer"])
def test_developer_messages_become_one_system_message_where_the_template_knows_none(role):
    source = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    messages = [{"role": "system", "content": "s"}, USER, {"role": role, "content": "d", "tools": []}]
    assert render(source, *messages) == "[system:s\n\nd][user:x]"
    assert render(source + "{# 'developer' #}", *messages) == "[system:s][user:x][developer:d]"


@pytest.mark.parametrize("strict", [True, False])
def test_later_system_messages_of_anthropic_requests_move_only_where_they_must(strict):
    guard = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    source = (
        "{% for m in messages %}" + (guard if strict else "") + "[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    messages = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}]
    text = Template(source).render(Chat(messages, merge_system=True), str)
    assert text == ("[system:ab][user:x]" if strict else "[system:a][user:x][system:b]")


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        ("<{{ messages[0].content }}>", "ab ", "<ab "),
        ("<{{ messages[0].content | trim }}>", "ab ", "<ab"),
        (EACH + "<{% for c in m.content %}{{ c.text }}>{% endfor %}{% endfor %}", [TEXT], "<q "),
    ],
)
def test_a_last_message_is_continued_where_it_ends(source, content, text):
    chat = Chat([{"role": "assistant", "content": content}], variables={"continue_final_message": True})
    assert Template(source).render(chat, str) == text
    assert chat.messages[0]["content"] == content


@pytest.mark.parametrize("source", ["nothing of it", "{{ messages[0].content | upper }}"])
def test_a_last_message_that_the_template_changes_cannot_be_continued(source):
    chat = Chat([{"role": "assistant", "content": "ab"}], variables={"continue_final_message": True})
    with pytest.raises(Unreadable):
        Template(source).render(chat, str)


def test_the_engines_default_variables_come_before_null_and_after_a_value():
    template = Template("{{ style }}", defaults={"style": "d"})
    assert template.render(Chat([USER]), str) == "d"
    assert template.render(Chat([USER], variables={"style": None}), str) == "d"
    assert template.render(Chat([USER], variables={"style": "auto"}), str) == "d"
    assert template.render(Chat([USER], variables={"style": "r"}), str) == "r"


def test_what_decides_the_text_is_in_the_fingerprint():
    prints = {
        template.fingerprint
        for template in (
            Template("a"),
            Template("b"),
            Template({"default": "a", "tool_use": "b"}),
            Template("a", {"bos_token": "<s>"}),
            Template("a", defaults={"x": 1}),
        )
    }
    assert len(prints) == 5
    assert Template("a").fingerprint == Template("a", trust_requests=True).fingerprint


def test_rendering_changes_nothing_it_is_given():
    _, template = loaded()
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [call], "reasoning_content": "r"}
    before = repr(message)
    template.render(Chat([USER, message], tools=[]), str)
    assert repr(message) == before
