"""The life of one keying: warm at once, the rest in pieces; stopped, resumed, read meanwhile, followed."""

import threading
from array import array

import pytest

from proxy.prompt.keyer import FIRST_RATIO, RATIOS, SLICE
from proxy.prompt.parse import Endpoint
from tests.support.keying import BLOCK, LONG, chat, keyer, keys, loaded, parsed, shared, user

TURN = {"role": "assistant", "content": "An answer, and a long one. " * 20}
ASK = user("A question that takes its time. " * 20)
BODY = chat({"role": "system", "content": LONG}, ASK, TURN, ASK)


def begun(maker, body, endpoint=Endpoint.CHAT):
    return maker.begin(parsed(body, endpoint))


def test_what_is_cold_waits_for_run():
    keying = begun(keyer(), BODY)
    assert not keying.done
    assert keying.pending == keying.characters > 0
    assert (list(keying.keys), keying.tokens) == ([], 0)
    keying.run()
    assert keying.done
    assert keying.pending == 0
    assert len(keying.keys) == keying.tokens // BLOCK > 50


def test_what_is_warm_is_done_at_once():
    maker = keyer()
    cold = begun(maker, BODY)
    cold.run()
    warm = begun(maker, BODY)
    assert warm.done
    assert (warm.keys, warm.tokens, warm.pending) == (cold.keys, cold.tokens, 0)


def test_of_the_next_turn_only_what_is_new_is_tokenized(monkeypatch):
    maker = keyer()
    begun(maker, BODY).run()
    tokenizer, _ = loaded()
    encoded = []
    exactly = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encoded.append(text) or exactly(text))
    keying = begun(maker, chat(*BODY["messages"], TURN, ASK))
    assert keying.tokens > 500
    keying.run()
    assert sum(map(len, encoded)) < len(TURN["content"]) + len(ASK["content"]) + 200
    assert keying.keys == keys(keyer(), chat(*BODY["messages"], TURN, ASK))


def test_T10_a_run_that_is_stopped_keeps_what_it_has_and_can_go_on(monkeypatch):
    maker = keyer()
    whole = keys(keyer(), BODY)
    keying = begun(maker, BODY)
    tokenizer, _ = loaded()
    exactly = tokenizer.encode

    def stops_after_one(text):
        keying.stop = True
        return exactly(text)

    monkeypatch.setattr(tokenizer, "encode", stops_after_one)
    counts = []
    while not keying.done:
        keying.stop = False
        keying.run()
        counts.append(len(keying.keys))
        assert keying.keys == whole[: len(keying.keys)]
        assert len(keying.keys) <= keying.tokens // BLOCK
    assert counts == sorted(set(counts[:-1])) + counts[-1:]
    assert keying.keys == whole


def test_a_stop_before_the_run_does_nothing():
    keying = begun(keyer(), BODY)
    keying.stop = True
    keying.run()
    assert (keying.done, list(keying.keys)) == (False, [])


def test_a_reader_keeps_the_keys_it_has():
    """`keys` is replaced, never changed: what the event loop holds stays as it was."""
    keying = begun(keyer(), BODY)
    held = [keying.keys]
    thread = threading.Thread(target=keying.run)
    thread.start()
    while thread.is_alive():
        if keying.keys is not held[-1]:
            held.append(keying.keys)
    thread.join()
    assert keying.done
    sizes = [len(one) for one in held]
    assert sizes == sorted(set(sizes)) or sizes[0] == 0
    assert all(one == keying.keys[: len(one)] for one in held)


def test_many_threads_make_the_same_keys():
    maker = keyer(trie_bytes=30_000)
    bodies = [chat({"role": "system", "content": LONG * 4}, user(f"{n} " * 300)) for n in range(6)]
    expected = [keys(keyer(), body) for body in bodies]
    found: dict[int, list] = {n: [] for n in range(len(bodies))}

    def work(start: int) -> None:
        for at in range(30):
            which = (start + at) % len(bodies)
            keying = begun(maker, bodies[which])
            keying.run()
            found[which].append(keying.keys)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which, every in found.items():
        assert every
        assert all(one == expected[which] for one in every)
    assert maker.trie.used <= maker.trie.budget


def test_special_tokens_begin_a_completion_and_end_it(monkeypatch):
    tokenizer, _ = loaded()
    monkeypatch.setattr(tokenizer, "prefix", array("I", [5, 6]).tobytes())
    monkeypatch.setattr(tokenizer, "suffix", array("I", [7]).tobytes())
    maker = keyer()
    plain = maker.token_ids(parsed({"prompt": LONG, "add_special_tokens": False}, Endpoint.COMPLETIONS))
    special = maker.token_ids(parsed({"prompt": LONG}, Endpoint.COMPLETIONS))
    assert special == array("I", [5, 6]) + plain + array("I", [7])
    assert keys(maker, {"prompt": LONG}, Endpoint.COMPLETIONS) == keys(
        maker, {"prompt": special.tolist()}, Endpoint.COMPLETIONS
    )
    keying = begun(maker, {"prompt": LONG}, Endpoint.COMPLETIONS)
    keying.run()
    assert keying.tokens == len(special)
    assert maker.extend(keying, "answer " * 99) == keying.keys, "after an end token nothing goes on"


@pytest.mark.parametrize("mode", ["exact", "bytes"])
def test_the_next_turn_continues_prompt_and_answer(mode):
    maker = keyer() if mode == "exact" else keyer(tokenizer=None, template=None)
    keying = begun(maker, BODY)
    keying.run()
    held = maker.extend(keying, TURN["content"])
    following = keys(maker, chat(*BODY["messages"], TURN, user("x")))
    assert len(held) > len(keying.keys) + 5
    assert shared(held, following) == len(held)


@pytest.mark.parametrize("mode", ["exact", "bytes"])
def test_a_completion_is_continued_by_its_answer(mode):
    maker = keyer() if mode == "exact" else keyer(tokenizer=None, template=None)
    keying = begun(maker, {"prompt": LONG}, Endpoint.COMPLETIONS)
    keying.run()
    held = maker.extend(keying, " and more" * 50)
    following = keys(maker, {"prompt": LONG + " and more" * 50 + " x" * 20}, Endpoint.COMPLETIONS)
    assert shared(held, following) >= len(held) - 1
    assert len(held) > len(keying.keys)


def test_what_is_not_keyed_to_its_end_is_not_continued():
    maker = keyer()
    keying = begun(maker, BODY)
    assert list(maker.extend(keying, "x" * 999)) == []
    keying.run()
    assert maker.extend(keying, "") is keying.keys
    nothing = maker.begin(parsed({"model": "m"}))
    assert list(maker.extend(nothing, "x" * 999)) == []


def test_in_bytes_mode_tokens_are_estimated_by_what_engines_report():
    maker = keyer(tokenizer=None, template=None)
    assert (maker.mode, maker.fingerprint) == ("bytes", b"bytes")
    keying = begun(maker, BODY)
    assert keying.tokens == round(keying.characters * FIRST_RATIO)
    assert not keying.counts_exactly
    for _ in range(200):
        maker.learn_ratio(keying.characters, keying.characters // 2)
    assert maker.ratio == pytest.approx(0.5, abs=0.01)
    assert begun(maker, BODY).tokens == pytest.approx(keying.characters / 2, rel=0.02)


@pytest.mark.parametrize(("characters", "tokens"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
def test_reports_of_nothing_teach_nothing(characters, tokens):
    maker = keyer(tokenizer=None, template=None)
    maker.learn_ratio(characters, tokens)
    assert maker.ratio == FIRST_RATIO


def test_wild_reports_are_clamped():
    maker = keyer(tokenizer=None, template=None)
    for _ in range(999):
        maker.learn_ratio(1, 10**9)
    assert maker.ratio <= RATIOS[1]
    for _ in range(9999):
        maker.learn_ratio(10**9, 1)
    assert maker.ratio >= RATIOS[0] * 0.999


def test_in_bytes_mode_a_block_is_four_bytes_a_token():
    maker = keyer(tokenizer=None, template=None)
    found = keys(maker, {"prompt": "x" * 4 * BLOCK * 3 + "y"}, Endpoint.COMPLETIONS)
    assert len(found) == 3


def test_long_prompts_of_bytes_go_in_slices():
    maker = keyer(tokenizer=None, template=None)
    text = "x" * (3 * SLICE + 100)
    keying = begun(maker, {"prompt": text}, Endpoint.COMPLETIONS)
    assert keying.pending == len(text)
    keying.run()
    assert len(keying.keys) == len(text) // (4 * BLOCK)
    assert keying.keys[:3] == keys(maker, {"prompt": text[:200]}, Endpoint.COMPLETIONS)


def test_affinity_is_stable_and_of_the_beginning():
    maker = keyer()

    def of(*messages, **fields):
        return begun(maker, chat(*messages, **fields)).affinity

    system = {"role": "system", "content": LONG * 3}
    cold = of(system, user("a"))
    begun(maker, chat(system, user("a"))).run()
    assert of(system, user("a")) == cold == of(system, user("b")) != 0
    assert of(user("a")) != of(user("b"))
    assert begun(keyer(model="other"), chat(system, user("a"))).affinity != cold
    assert maker.begin(parsed({"model": "m"})).affinity == 0


def test_different_images_in_short_prompts_have_different_affinities():
    maker = keyer()
    image = lambda url: user([{"type": "image_url", "image_url": {"url": url}}])  # noqa: E731 - says what it is
    assert begun(maker, chat(image("a"))).affinity != begun(maker, chat(image("b"))).affinity


def test_counts_with_media_are_not_the_engines():
    keying = begun(keyer(), chat(user([{"type": "image_url", "image_url": {"url": "u"}}])))
    keying.run()
    assert not keying.counts_exactly
    assert begun(keyer(), BODY).counts_exactly


def test_the_prompts_text_is_let_go_when_all_is_keyed():
    """A stream may last minutes; what it holds meanwhile should be keys, not text."""
    keying = begun(keyer(), BODY)
    keying.run()
    plan = keying._plan
    assert plan is not None
    assert (list(plan.chunks), keying._path) == ([], [])
