"""Request bodies: reading them within bounds, and looking through a content coding.

What is forwarded is always the bytes as they came; the inflated ones are only read.
"""

import asyncio
import zlib

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.errors import BadRequest, ClientGone, ExpectationFailed, RequestTimeout, TooLarge
from proxy.request import Request

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""Window bits for zlib; 16 more than the largest window asks for gzip's wrapper."""


async def whole(request: Request, limit: int, seconds: float) -> bytes:
    """A request's body. Raises TooLarge, and what `read` raises."""
    if request.unread is not None:
        request.body = await read(request.unread, limit, seconds)
        request.unread = None
    assert request.body is not None
    if len(request.body) > limit:
        raise TooLarge(_too_large(limit))
    return request.body


async def read(request: web.BaseRequest, limit: int, seconds: float) -> bytes:
    """The whole body. Answers `Expect: 100-continue` first; refuses what is too long without reading it.

    Raises TooLarge, BadRequest (a broken body), RequestTimeout, ExpectationFailed, ClientGone.
    """
    length = request.content_length or 0
    if length > limit:
        raise TooLarge(_too_large(limit))
    expect = request.headers.get(hdrs.EXPECT)
    if expect is not None:
        if expect.lower() != "100-continue":
            raise ExpectationFailed("the only expectation met here is 100-continue")
        transport = request.transport
        if transport is None:
            raise ClientGone
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while chunk := await content.readany():
                size += len(chunk)
                if size > limit:
                    raise TooLarge(_too_large(limit))
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeout(
            f"the request took over {seconds:g} s to arrive; WARMROUTE_TIMEOUTS__REQUEST sets the limit"
        ) from None
    except (web.RequestPayloadError, HttpProcessingError, ValueError) as error:
        raise BadRequest("the request body is not framed as HTTP/1.1 says") from error
    except ConnectionError as error:
        raise ClientGone from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def inflate(body: bytes, coding: bytes, limit: int) -> bytes | None:
    """The body without its content coding; None if the coding is not one that is read here.

    Raises BadRequest if the body is not what the coding says, TooLarge if it inflates past `limit` bytes.
    """
    coding = coding.strip().lower()
    if coding in (b"", b"identity"):
        return body
    window = _WINDOW.get(coding)
    if window is None:
        return None
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the request body is not {coding.decode()}") from error
    if len(plain) > limit:
        raise TooLarge(_too_large(limit))
    if not inflater.eof or inflater.unused_data:
        raise BadRequest(f"the request body is not one whole {coding.decode()} stream")
    return plain


def _too_large(limit: int) -> str:
    return f"the request body is over {limit} bytes; WARMROUTE_LIMITS__BODY_BYTES sets the limit"
