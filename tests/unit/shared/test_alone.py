"""A pool of one grants everything and says nothing."""

from array import array

from proxy.index.handles import Delta
from proxy.shared.base import Alone, Pool


async def test_alone_every_claim_is_granted_and_lasts() -> None:
    pool: Pool = Alone()
    await pool.agree()
    await pool.start()
    first, second = await pool.claim("a"), await pool.claim("b")
    assert first is not None
    assert second is not None
    assert first.token != second.token
    assert await pool.resume(first) is None
    pool.commit(first, "e", 1, Delta(stored=array("Q", [1])))
    pool.announce(first, "e", "stale")
    pool.predicted(1, "a", array("Q", [1]))
    pool.retracted(1)
    pool.reported(1, 2, 3)
    pool.forgotten("a")
    await pool.release(first)
    await pool.close()
    assert not first.lost.is_set()
    assert not pool.up
    assert pool.lag == 0.0
    assert pool.others("a") == (0, 0, 0)
