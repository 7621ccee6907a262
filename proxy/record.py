"""What is known of one request, gathered on its way and told once, when it has ended."""

from dataclasses import dataclass

from proxy.router import Lease


@dataclass(slots=True)
class Record:
    """One request. Times are seconds; None is unknown, which is not zero."""

    id: str
    endpoint: str
    """The route as a metric label: never a path that a client made up."""
    started: float
    """Loop time when the request was read."""
    model: str = ""
    """The model as the fleet names it; empty if the fleet does not know it."""
    group: str = "random"
    priority: str = "standard"
    policy: str = ""
    arm: str = "main"
    decision: str = ""
    replica: str = ""
    status: int = 0
    """Status sent to the client; 499 if it left before one."""
    outcome: str = "ok"
    """`ok`, `client_closed`, `rejected` (by the proxy), `failed` (by the replica), `broken` (mid-answer)."""
    reason: str = ""
    """What went wrong, in a few words."""
    attempts: int = 0
    stream: bool = False
    prompt_tokens: int = 0
    """As the proxy counted; 0 if the prompt was not understood."""
    available_tokens: int = 0
    routed_tokens: int = 0
    reported_prompt: int | None = None
    reported_cached: int | None = None
    output_tokens: int | None = None
    queue: float = 0.0
    overhead: float | None = None
    """From the request being read to its dispatch, without the wait in a queue."""
    ttft: float | None = None
    """From the request being read to its first token."""
    tpot: float | None = None
    e2e: float = 0.0
    ended: float = 0.0
    """Unix time."""
    traceparent: bytes = b""
    """W3C's field, as replicas get it."""
    is_root: bool = True
    """Whether its trace began here."""
    keyed: float = 0.0
    """Loop time when its prompt had been understood; 0 where nobody traces."""
    lease: Lease | None = None
    """Of its last attempt: what was decided, and upon what. Until it was told of, for it holds every key."""
