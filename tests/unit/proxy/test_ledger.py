"""The ledger: a reader that fails is its own loss."""

from collections.abc import Sequence

from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.index.truth import TrueIndex
from proxy.ledger import Ledger
from proxy.logs import RequestLog
from proxy.metrics import Metrics
from proxy.record import Record


def test_a_reader_that_fails_costs_nobody_else_a_record(caplog):
    def fails(_: Sequence[Record]) -> None:
        raise ArithmeticError("planted")

    seen: list[Record] = []
    metrics = Metrics(Fleet(lambda: 1.0), TrueIndex(MemoryIndex(), lambda: 0.0))
    ledger = Ledger(metrics, RequestLog(json=False))
    ledger.readers += [fails, seen.extend]
    record = Record("req-1", "/v1/chat/completions", 1.0)
    ledger.add(record)
    ledger.flush()
    assert seen == [record]
    assert "planted" in caplog.text
