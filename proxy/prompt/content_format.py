"""Whether a chat template wants a message's content as one string or as a list of parts.

vLLM decides by looking for a loop over the content of a message in the template's syntax tree
(`vllm.renderers.hf._detect_content_format`); prompts equal the engine's only if we decide alike.
"""

from collections.abc import Iterator
from typing import Final

from jinja2 import nodes

from proxy.prompt.conversation import Parts


def content_format(tree: nodes.Template) -> Parts:
    """Say which form the template of this syntax tree wants; "string" where its form is not known."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _UnknownFormError:
        return "string"


class _UnknownFormError(Exception):
    """A loop or assignment with several targets: vLLM gives up here, and takes the default."""


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = list(_message_names(tree))
    loops_of_macros: set[int] = set()
    parameters: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        passed = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            loops_of_macros.add(id(loop))
            if passed:
                parameters[id(loop)] = passed
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        if any(_is_path(over, name, "content") for name in messages):
            _target(loop)
            return True
        if isinstance(over, nodes.Name) and (
            over.name in parameters.get(id(loop), ())
            or (over.name == "content" and id(loop) not in loops_of_macros)
        ):
            _target(loop)
            return True
    return False


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Yield the names that loops give to a message."""
    lists = list(_aliases(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        if any(_is_path(loop.iter, name) for name in lists):
            yield _target(loop)


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """Yield a variable's name, and those that it or part of it is assigned to."""
    yield name
    waiting = [name]
    known: Final = {name}
    while waiting:
        current = waiting.pop(0)
        for assign in tree.find_all(nodes.Assign):
            if _is_path(assign.node, current):
                if not isinstance(assign.target, nodes.Name):
                    raise _UnknownFormError
                yield assign.target.name
                if assign.target.name not in known:
                    known.add(assign.target.name)
                    waiting.append(assign.target.name)


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    """Find the parameters through which a macro is handed a message's content."""
    names = [argument.name for argument in macro.args]
    found = set()
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        passed = list(zip(names, call.args, strict=False))
        passed += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        found |= {
            name for name, value in passed if any(_is_path(value, message, "content") for message in messages)
        }
    return found


def _target(loop: nodes.For) -> str:
    if not isinstance(loop.target, nodes.Name):
        raise _UnknownFormError
    return loop.target.name


def _is_path(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Tell whether a node reads `name` (or its field `key`), be it through filters, tests or slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_path(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _is_path(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is_path(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_path(node.node, name)
