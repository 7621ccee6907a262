"""What llama.cpp's server says of itself, and what it may say instead."""

import pytest

from proxy import describe
from proxy.description import Description

PROPS = (
    b'{"default_generation_settings":{"n_ctx":4096,"params":{}},"total_slots":4,"build_info":"b1-7e4c0a9"}'
)


def test_props_tell_slots_and_their_room():
    description = Description("llama_cpp")
    describe.read_props(PROPS, description)
    assert (description.max_seqs, description.cache_blocks) == (4, 4 * 4096 // 16)


@pytest.mark.parametrize(
    ("props", "slots", "blocks"),
    [
        (b'{"total_slots":2}', 2, None),
        (b'{"total_slots":2,"default_generation_settings":{"n_ctx":0}}', 2, None),
        (b'{"total_slots":2,"default_generation_settings":[]}', 2, None),
        (b'{"total_slots":0,"default_generation_settings":{"n_ctx":4096}}', None, None),
        (b'{"total_slots":"4"}', None, None),
        (b"[]", None, None),
        (b"not JSON", None, None),
    ],
)
def test_what_is_not_told_is_unknown(props, slots, blocks):
    description = Description("llama_cpp")
    describe.read_props(props, description)
    assert (description.max_seqs, description.cache_blocks) == (slots, blocks)
