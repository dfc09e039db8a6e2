"""Read the parameters of a request from its address and its body, JSON or a form (extra `serve`)."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Callable
from urllib.parse import unquote_to_bytes

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

WITH_FILE = "multipart/form-data"
BODIES = ("application/json", "application/x-www-form-urlencoded", WITH_FILE)
_MAX_FIELD_BYTES = 1 << 16  # of a field beside a file
_OBJECT = TypeAdapter(dict[str, object])
CheckKey = Callable[[Request, object], None]


def media_type(headers: Headers) -> str:
    """Return what a body is, without its charset."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_parameters(request: Request, max_files: int, check_key: CheckKey) -> dict[str, object]:
    """Return the parameters in the address and the body of a request, a JSON object or a form.

    Raises:
        HTTPException: if the body is damaged.
    """
    kind = media_type(request.headers)
    _check_utf8(unquote_to_bytes(request.scope["query_string"]), "address")
    # LibreTranslate takes parameters from the address as well; those in the body win
    given: dict[str, object] = dict(request.query_params)
    # application/ld+json and others are JSON too (RFC 6839, section 3.1).
    if kind == "application/json" or kind.endswith("+json"):
        try:
            body = await request.body()
            # With a byte order mark, or in UTF-16, as in LibreTranslate. Unlike `json`, pydantic refuses "\ud800",
            # which is no text and would fail much later, in a tokenizer.
            return given | _OBJECT.validate_json(body.decode(json.detect_encoding(body)))
        except UnicodeDecodeError:
            expected = "JSON in UTF-8"
        except ValidationError as errors:
            expected = "JSON in UTF-8" if errors.errors()[0]["type"] == "json_invalid" else "a JSON object"
        raise HTTPException(400, f"Invalid request: the body is not {expected}")

    # Starlette would replace what is not UTF-8, or take it for Latin-1. Of a file, only its format knows what it is.
    body = b"" if max_files else await request.body()
    _check_utf8(body if kind == WITH_FILE else unquote_to_bytes(body), "form")
    # Starlette would decode the form with any codec of Python that a client names.
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]*)", request.headers.get("content-type", ""), re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8"):
        raise HTTPException(400, "Invalid request: the form is not UTF-8")
    if kind == WITH_FILE:
        form = await _parts(request, max_files, check_key)
    else:
        # The size of the whole body is limited already, and Starlette's own limits would refuse long texts and lists.
        form = await request.form(max_fields=sys.maxsize, max_part_size=sys.maxsize)
    fields: dict[str, list[object]] = {}
    # in one pass: `getlist` goes through all fields for each name
    for name, value in form.multi_items():
        item = (value.filename or "", await value.read()) if isinstance(value, UploadFile) else value
        fields.setdefault(name, []).append(item)
    await form.close()
    # a repeated field is a list, as several texts are in JSON
    return given | {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _parts(request: Request, max_files: int, check_key: CheckKey) -> FormData:
    """Return a form with files, which stay in memory; a key before the file is checked before the file is read.

    Raises:
        HTTPException: if it is damaged.
    """

    async def chunks() -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            yield chunk
            # what the chunk completes
            for name, value in parser.items:
                if name == "api_key":
                    check_key(request, value)

    max_fields = 100 if max_files else sys.maxsize
    max_size = _MAX_FIELD_BYTES if max_files else sys.maxsize
    parser = MultiPartParser(
        request.headers, chunks(), max_files=max_files, max_fields=max_fields, max_part_size=max_size
    )
    parser.spool_max_size = sys.maxsize
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None


def _check_utf8(content: bytes, where: str) -> None:
    try:
        content.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, f"Invalid request: the {where} is not UTF-8") from None
