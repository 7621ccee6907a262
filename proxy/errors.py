"""The errors a client can see. Each knows its status and speaks OpenAI's error shape."""

import msgspec


class ProxyError(Exception):
    """An answer the proxy makes itself; `message` names the fix where there is one."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The error as a JSON body in OpenAI's shape."""
        error = {"message": self.message, "type": self.type, "code": self.code, "param": self.param}
        return msgspec.json.encode({"error": error})


class BadRequest(ProxyError):
    """The request cannot be understood."""

    status, type, code = 400, "invalid_request_error", "invalid_request"


class Unauthorized(ProxyError):
    """The admin token is missing or wrong."""

    status, type, code = 401, "authentication_error", "invalid_admin_token"


class InvalidKey(Unauthorized):
    """The API key is missing or wrong."""

    type, code = "invalid_request_error", "invalid_api_key"


class NotFound(ProxyError):
    """Nothing is served at this path."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """No replica serves this model."""

    code = "model_not_found"


class MethodNotAllowed(ProxyError):
    """The path exists, the method does not."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class RequestTimeout(ProxyError):
    """The request did not arrive in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class Conflict(ProxyError):
    """What is asked for contradicts what there is."""

    status, type, code = 409, "invalid_request_error", "conflict"


class TooLarge(ProxyError):
    """The body is over the limit."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class ExpectationFailed(ProxyError):
    """An `Expect` that is not `100-continue`."""

    status, type, code = 417, "invalid_request_error", "expectation_failed"


class RateLimited(ProxyError):
    """The caller has used up what its key allows a minute; `type` is of what: `requests` or `tokens`."""

    status, code = 429, "rate_limit_exceeded"

    def __init__(self, kind: str, message: str, *, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.type = kind


class HeadersTooLarge(ProxyError):
    """The request's header fields are over the limit."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class Shed(ProxyError):
    """There is not room for this request in time."""

    status, type, code = 429, "rate_limit_error", "overloaded"


class InternalError(ProxyError):
    """A fault of the proxy's own."""


class CannotIsolate(ProxyError):
    """Each key has a cache of its own, and the replica could not be told of it."""

    status, type, code = 501, "invalid_request_error", "cache_isolation_unsupported"


class UpstreamFailed(ProxyError):
    """The replica failed before it answered."""

    status, type, code = 502, "server_error", "upstream_failed"


class NoReplica(ProxyError):
    """No replica is usable right now."""

    status, type, code = 503, "server_error", "no_replica"


class UpstreamTimeout(ProxyError):
    """The replica did not answer in time."""

    status, type, code = 504, "server_error", "upstream_timeout"


class ClientGone(Exception):
    """The client left before it was answered; nothing is sent to it."""
