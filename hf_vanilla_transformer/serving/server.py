"""An HTTP server with LibreTranslate's API, so that its clients can use models of this package (extra `serve`)."""

import asyncio
import hmac
import json
import sys
import time
import traceback
from collections.abc import Coroutine, Sequence
from typing import Literal, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers.utils import logging

from ..version import __version__
from .batcher import QueueFullError
from .monitoring import Metrics
from .page import page_response
from .service import AUTO, Detection, Translation, TranslationService, UnsupportedError

logger = logging.get_logger(__name__)
BYTES_PER_CHARACTER = 12  # of a request: "\ud83d\ude00" in JSON, %F0%9F%98%80 in a form
CLIENT_CLOSED_REQUEST = 499  # as nginx calls it; only the log and the metrics see it
_Parameters = TypeVar("_Parameters", bound=BaseModel)


class TranslateRequest(BaseModel):
    """A translation request."""

    q: str | list[str] = Field(description="a text, or several")
    source: str = Field(description='language of the text, or "auto"')
    target: str = Field(description="language to translate into")
    format: str | None = Field("text", description="format of the text, always text")
    alternatives: int = Field(
        0, ge=0, le=100, description="number of other translations; fewer if the beam is smaller"
    )
    api_key: str | None = None


class DetectRequest(BaseModel):
    """A text in an unknown language."""

    q: str
    api_key: str | None = None


class DetectedLanguage(BaseModel):
    """A language, and how certain it is, in per cent."""

    confidence: float
    language: str


class TranslateResponse(BaseModel):
    """Translations: strings for one text, lists with an item for each text for several."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    warnings: list[str] | list[list[str]] | None = Field(None, description="what could not be translated")


class Language(BaseModel):
    """A language, and those into which it is translated."""

    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    """The state of the server."""

    status: Literal["ok"] = "ok"


class Error(BaseModel):
    """An error message."""

    error: str


class Server:
    """The endpoints of the API.

    Args:
        service: translates.
        metrics: counts.
        api_keys: keys of which `translate` and `detect` require one; none for a server open to all.
        max_characters: maximum number of characters of all texts of a request together.
        timeout: maximum seconds until a request has arrived and is translated.
    """

    def __init__(
        self,
        service: TranslationService,
        metrics: Metrics,
        api_keys: Sequence[str] = (),
        max_characters: int = 10_000,
        timeout: float = 30.0,
    ):
        self.service = service
        self.metrics = metrics
        self._api_keys = [key.encode() for key in api_keys]
        self._max_characters = max_characters
        self._timeout = timeout

    def app(self, cors_origins: Sequence[str] = (), page: bool = True) -> FastAPI:
        """Return the application.

        Args:
            cors_origins: the web sites whose pages may use the server.
            page: whether the page is at the address /.
        """
        app = FastAPI(
            title="hf-vanilla-transformer",
            version=__version__,
            description="Translations by the original Transformer, with LibreTranslate's API.",
        )
        # for the documentation at /docs only
        errors: dict[int | str, dict[str, object]] = {
            code: {"model": Error} for code in (400, 403, 408, 413, 500, 503, 504)
        }
        app.post(
            "/translate",
            response_model=TranslateResponse,
            response_model_exclude_none=True,
            responses=errors,
            openapi_extra=_body(TranslateRequest),
        )(self.translate)
        app.post(
            "/detect", response_model=list[DetectedLanguage], responses=errors, openapi_extra=_body(DetectRequest)
        )(self.detect)
        app.get("/languages", response_model=list[Language])(self.languages)
        app.get("/frontend/settings")(self.frontend_settings)
        app.get("/health", response_model=Health)(self.health)
        app.head("/health", include_in_schema=False)(self.health)
        app.get("/metrics", response_class=Response)(self.render_metrics)
        if page:
            app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)(page_response)
        app.add_exception_handler(HTTPException, _error_response)
        # What is added last is outermost: requests refused for their origin are measured and logged too.
        app.add_middleware(CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["GET", "POST"])
        app.add_middleware(_Watch, metrics=self.metrics, max_bytes=BYTES_PER_CHARACTER * self._max_characters + 10_000)
        return app

    async def translate(self, request: Request) -> dict[str, object]:
        """Translate a text, or several."""
        # from the first byte on, so that a slow client gains no time
        deadline = time.monotonic() + self._timeout
        wanted = await self._read(request, TranslateRequest)
        if wanted.format not in ("text", "", None):
            raise HTTPException(400, "Invalid request: format: only text is supported")
        texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
        self._check_size(texts)

        work = self.service.translate(texts, wanted.source, wanted.target, wanted.alternatives)
        translations = await self._answer(request, work, deadline)

        # For several texts, each field is a list with one item per text; for a single text, it is that item.
        answer: dict[str, Sequence[object]] = {"translatedText": [each.text for each in translations]}
        if wanted.alternatives:
            answer["alternatives"] = [each.alternatives for each in translations]
        if wanted.source == AUTO:
            answer["detectedLanguage"] = [_detected(each.detected) for each in translations if each.detected]
        if any(each.warnings for each in translations):
            answer["warnings"] = [each.warnings for each in translations]
        return {name: items[0] if isinstance(wanted.q, str) else items for name, items in answer.items()}

    async def detect(self, request: Request) -> list[DetectedLanguage]:
        """Return the languages in which a text may be, the most probable first."""
        wanted = await self._read(request, DetectRequest)
        self._check_size([wanted.q])
        # detection takes milliseconds, for which other requests must not wait
        found = await asyncio.to_thread(self.service.detect, wanted.q)
        return [_detected(item) for item in found]

    async def languages(self) -> list[dict[str, str | list[str]]]:
        """Return the languages, and into which others each is translated."""
        return self.service.languages()

    async def frontend_settings(self) -> dict[str, object]:
        """Return what a page or an app needs to know before it sends a request, as LibreTranslate does."""
        languages = self.service.languages()
        names = {each["code"]: each["name"] for each in languages}
        first, *others = [each for each in languages if each["targets"]]
        target = first["targets"][0]

        # With one source language there is nothing to detect.
        source = {"code": AUTO, "name": "Auto Detect"} if others else {"code": first["code"], "name": first["name"]}
        return {
            "apiKeys": bool(self._api_keys),
            "charLimit": self._max_characters,
            "filesTranslation": False,
            # milliseconds after a key, for pages that translate while somebody types
            "frontendTimeout": 500,
            "keyRequired": bool(self._api_keys),
            "language": {"source": source, "target": {"code": target, "name": names[target]}},
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    async def health(self) -> Health:
        """Return 200 while the server is running."""
        return Health()

    async def render_metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        content, media_type = self.metrics.render()
        return Response(content, media_type=media_type)

    async def _read(self, request: Request, kind: type[_Parameters]) -> _Parameters:
        """Return the parameters of a request and check its key.

        Raises:
            HTTPException: if they are wrong, or take too long to arrive.
        """
        try:
            given = await asyncio.wait_for(_parameters(request), self._timeout)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"The request took longer than {self._timeout:g} s to arrive.") from None
        except ClientDisconnect:
            raise HTTPException(CLIENT_CLOSED_REQUEST, "The client has disconnected.") from None
        # before anything else is said about the request
        self._check_key(given.get("api_key"))
        try:
            return kind.model_validate(given)
        except ValidationError as errors:
            # without the input, which answers and logs must not repeat
            problem = errors.errors(include_input=False, include_url=False)[0]
            name = problem["loc"][0]
            if problem["type"] == "missing":
                raise HTTPException(400, f"Invalid request: missing {name} parameter") from None
            raise HTTPException(400, f"Invalid request: {name}: {problem['msg']}") from None

    def _check_key(self, given: object) -> None:
        if not self._api_keys:
            return
        if given is None:
            raise HTTPException(403, "Please provide an API key (api_key)")

        # In constant time, and all of them, so that the time of the answer tells nothing about the keys.
        key = str(given).encode(errors="replace")
        if not any([hmac.compare_digest(key, each) for each in self._api_keys]):
            raise HTTPException(403, "Invalid API key")

    def _check_size(self, texts: Sequence[str]) -> None:
        # an empty text counts too, or a request could hold any number of them
        size = sum(max(1, len(text)) for text in texts)
        if size > self._max_characters:
            raise HTTPException(
                400, f"Invalid request: the text has {size:,} characters, more than {self._max_characters:,}"
            )

    async def _answer(
        self, request: Request, work: Coroutine[object, object, list[Translation]], deadline: float
    ) -> list[Translation]:
        """Return the result of `work`, which is dropped if its client disconnects or it takes too long."""
        remaining = max(0.0, deadline - time.monotonic())
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({task, disconnect}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            # first, because both may be done
            if task.done():
                return task.result()
            if disconnect.done():
                # raises an error if the client sends too much
                disconnect.result()
                raise HTTPException(CLIENT_CLOSED_REQUEST, "The client has disconnected.")
            raise HTTPException(504, f"The request took longer than {self._timeout:g} s.")
        except QueueFullError as error:
            raise HTTPException(503, str(error), {"Retry-After": str(error.retry_after)}) from None
        except UnsupportedError as error:
            raise HTTPException(400, str(error)) from None
        finally:
            task.cancel()
            disconnect.cancel()


def _detected(found: Detection) -> DetectedLanguage:
    return DetectedLanguage(confidence=round(100 * found.probability, 1), language=found.language)


def _body(kind: type[BaseModel]) -> dict[str, object]:
    """Return the description of a request whose body is read by `_parameters`."""
    schema = kind.model_json_schema()
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def _parameters(request: Request) -> dict[str, object]:
    """Return the parameters in the address and the body of a request, a JSON object or a form.

    Raises:
        HTTPException: if the body is damaged.
    """
    # LibreTranslate takes parameters from the address as well; those in the body win
    given: dict[str, object] = dict(request.query_params)
    if request.headers.get("content-type", "").lower().startswith("application/json"):
        try:
            body = json.loads(await request.body())
            # "\ud800" is valid JSON, but not text
            json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise HTTPException(400, "Invalid request: the body is not JSON in UTF-8") from None
        if not isinstance(body, dict):
            raise HTTPException(400, "Invalid request: the body is not a JSON object")
        return given | body

    # the size of the whole body is limited already
    async with request.form(max_files=0, max_fields=sys.maxsize, max_part_size=sys.maxsize) as form:
        for name in form:
            # a repeated field is a list, as several texts are in JSON
            values = form.getlist(name)
            given[name] = values if len(values) > 1 else values[0]
    return given


async def _disconnected(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _error_response(request: Request, error: Exception) -> Response:
    """Return an error in LibreTranslate's form."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _Watch:
    """Refuse bodies that are too large, measure requests, and log them without anything that their clients wrote.

    Args:
        app: the application behind it.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, max_bytes: int):
        self._app = app
        self._metrics = metrics
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        # unless an answer begins
        status = CLIENT_CLOSED_REQUEST
        size = 0
        start = time.perf_counter()

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, f"Invalid request: it is larger than {self._max_bytes:,} bytes")
            return message

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive_limited, send_watched)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # also a panic of tokenizers; its message may quote a text, for no log
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("A request failed: %s\n%s", type(error).__name__, where)
            if status == CLIENT_CLOSED_REQUEST:
                # otherwise the answer has begun
                await JSONResponse({"error": "The server failed."}, 500)(scope, receive, send_watched)
        finally:
            seconds = time.perf_counter() - start
            # clients write what they like into addresses; only those of endpoints may become labels and lines of a log
            known = {getattr(route, "path", None) for route in scope["app"].routes}
            path = scope["path"] if scope["path"] in known else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            logger.info("%s: %d in %.0f ms", path, status, 1000 * seconds)
