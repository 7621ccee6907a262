"""What a simulated replica answers when it will not: vLLM 0.32's errors, in its shapes.

The texts and types were seen in a real vLLM's answers; clients and proxies tell errors apart by them.
"""

from typing import Any

import msgspec
from aiohttp import web


class ApiError(Exception):
    """An answer that is not a completion."""

    def __init__(
        self, message: str, *, status: int = 400, type_: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.type, self.param = message, status, type_, param

    def response(self) -> web.Response:
        """As vLLM answers it."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return json_response({"error": error}, self.status)


def json_response(content: Any, status: int = 200) -> web.Response:
    """A JSON answer without a blank too many."""
    return web.Response(
        body=msgspec.json.encode(content), status=status, headers={"Content-Type": "application/json"}
    )


def invalid_json(position: int, reason: str) -> ApiError:
    """The body is not JSON; FastAPI puts the position where the field's name goes."""
    at = f"body.{position}"
    return ApiError(
        f"1 validation error:\n  {{'type': 'json_invalid', 'loc': '{at}', 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>', 'ctx': {{'error': '{reason}'}}}}",
        type_="Bad Request",
        param=at,
    )


def missing(name: str, size: int) -> ApiError:
    """A field that must be there is not."""
    return ApiError(
        f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', "
        f"'input': '<dict of {size} items>'}}",
        type_="Bad Request",
        param=f"body.{name}",
    )


def wrong_type(name: str, kind: str, value: Any) -> ApiError:
    """A field has a value of the wrong kind."""
    return ApiError(
        f"1 validation error:\n  {{'type': '{kind}_type', 'loc': 'body.{name}', 'msg': "
        f"'Input should be a valid {kind}', 'input': {value!r}}}",
        type_="Bad Request",
        param=f"body.{name}",
    )


def not_json() -> ApiError:
    """The content type is something else."""
    return ApiError(
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
        type_="Bad Request",
    )


def unknown_model(name: Any, model: str) -> ApiError:
    """The model is not the one that is served."""
    return ApiError(
        f"The model `{name}` does not exist. Valid aliases: {model}.",
        status=404,
        type_="NotFoundError",
        param="model",
    )


def too_long(tokens: int, limit: int) -> ApiError:
    """The prompt does not fit into the context."""
    return ApiError(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
        f"{tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={tokens})",
        param="input_tokens",
    )


def too_many_output_tokens(name: str, tokens: int, limit: int) -> ApiError:
    """The client asks for more than the context holds."""
    return ApiError(
        f"{name}={tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens. "
        f"(parameter={name}, value={tokens})",
        param=name,
    )


def empty_salt() -> ApiError:
    """`cache_salt` is there but says nothing."""
    return ApiError(
        "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
        param="cache_salt",
    )


def rank_out_of_range(rank: int, ranks: int) -> ApiError:
    """There are only so many data-parallel ranks."""
    return ApiError(f"data_parallel_rank {rank} is out of range [0, {ranks}).")
