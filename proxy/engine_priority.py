"""A class's priority as an engine writes it: engines order in opposite directions.

The rule for a client's own `priority`: where some replica orders by priority, the field is the proxy's. It
then says the class for those replicas, and is taken out for the others, which would refuse it or read it
another way; a client that could write it would outrank everybody. Where no replica does, bodies are left
alone. vLLM's header of the same meaning, which wins over the field, is not passed on in such a fleet.

A request of several sequences carries none: vLLM has crashed on that (vllm-project/vllm#29747). Pure.
"""

from typing import Literal

from proxy.prompt.parse import Endpoint

Order = Literal["low_first", "high_first"]
"""Which values an engine takes first: vLLM low ones, SGLang, unless told otherwise, high ones."""
HEADER = frozenset((b"x-vllm-priority",))
ENDPOINTS = frozenset(
    (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.GENERATE, Endpoint.EMBEDDINGS)
)
"""Where both engines know the field. From other bodies it is only taken out."""


class EnginePriority:
    """What the bodies for each replica say."""

    def __init__(self, classes: int) -> None:
        self._orders: dict[str, Order] = {}
        self._classes = classes

    def __bool__(self) -> bool:
        """Whether any replica orders by priority."""
        return bool(self._orders)

    def learn(self, replica: str, order: Order | None) -> None:
        """A replica has come."""
        if order is not None:
            self._orders[replica] = order

    def forget(self, replica: str) -> None:
        """A replica has gone."""
        self._orders.pop(replica, None)

    def value(self, replica: str, endpoint: Endpoint, rank: int, sequences: int) -> int | None:
        """The priority of a class (rank 0 goes first) for a replica; None if the body is to have none.

        What comes to an engine past this proxy has priority 0, which is that of the first class where low
        values go first, and of the last where high ones do.
        """
        order = self._orders.get(replica)
        if order is None or sequences != 1 or endpoint not in ENDPOINTS:
            return None
        return rank if order == "low_first" else self._classes - 1 - rank
