"""How a bench's command ends: with its own status, and with a sentence instead of a traceback."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import aiohttp
import uvloop

INTERRUPTED, TERMINATED = 130, 143


def ended(work: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end; the process's exit status."""
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        return INTERRUPTED
    except asyncio.CancelledError:
        return TERMINATED
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
