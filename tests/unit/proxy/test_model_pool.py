"""When a tokenizer is given up, and that it is given up once."""

from pathlib import Path

from proxy.model_pool import MISMATCHES, ModelPool
from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.tokenizer import load

TOKENIZER = Path(__file__).resolve().parents[3] / "bench" / "data" / "tokenizer"
BODY = b'{"messages":[{"role":"user","content":"Hello there."}]}'


def test_other_counts_in_a_row_give_the_tokenizer_up_once():
    pool = ModelPool("m")
    tokenizer, template = load(TOKENIZER)
    pool.keyer = Keyer(secret=b"s", model="m", tokenizer=tokenizer, template=template)
    keying = pool.keyer.begin(parse(Endpoint.CHAT, BODY))
    keying.run()
    right, wrong = keying.tokens, keying.tokens + 1
    answers = [wrong] * (MISMATCHES - 1) + [right] + [wrong] * MISMATCHES
    told = [pool.learn(keying, reported, 1) for reported in answers]
    assert told == [False] * (len(answers) - 1) + [True]
    pool.keyer = Keyer(secret=b"s", model="m")
    assert not any(pool.learn(keying, wrong, 1) for _ in range(2 * MISMATCHES))
