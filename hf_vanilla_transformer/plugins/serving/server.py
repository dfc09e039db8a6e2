"""An HTTP server with LibreTranslate's API, so that its clients can use models of this package (extra `serve`)."""

import asyncio
import hmac
import math
import re
import secrets
import time
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, Field, ValidationError, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from ...data.foreign_files import ExchangeError, TooLargeError
from ...inference.segments import Document, DocumentFormat
from ...version import __version__
from .. import DOCUMENTS, find, load
from .batcher import QueueFullError, RequestTooLargeError
from .bodies import Body
from .file_process import FileProcesses
from .guard import Guard
from .monitoring import CLIENT_CLOSED_REQUEST, DOWNLOADS, Metrics, Watch
from .page import page_response
from .parameters import BODIES, WITH_FILE, read_parameters
from .service import AUTO, Detection, TranslationService, UnsupportedError

# The longest forms of a character in a request: "\ud83d\ude00" in JSON, %F0%9F%98%80 in a form.
BYTES_PER_CHARACTER = 12

# bytes of XML that Word writes for a character of text
MARKUP_PER_CHARACTER = 100

# of a file to translate, and of all translated files together
MAX_FILE_BYTES = 10 << 20
MAX_KEPT_BYTES = 100 << 20
SECONDS_KEPT = 600.0

# What a text may be, and the endings of files, with the plugin for documents
FORMATS: dict[str, type[Document]] = {"text": Document}
if "html" in find(DOCUMENTS):
    FORMATS["html"] = load(DOCUMENTS, "html").document
ENDINGS = tuple(f".{name}" for name in find(DOCUMENTS))

_ERRORS = (400, 403, 408, 413, 500, 503, 504)
_Parameters = TypeVar("_Parameters", bound=BaseModel)
_Result = TypeVar("_Result")


class TranslateRequest(BaseModel):
    """A translation request."""

    q: str | list[str] = Field(description="a text, or several")
    source: str = Field(description='language of the text, or "auto"')
    target: str = Field(description="language to translate into")
    format: str | None = Field("text", description=f"format of the text, {' or '.join(FORMATS)}")
    alternatives: int = Field(0, ge=0, le=100, description="number of other translations, fewer than beams")
    api_key: str | None = None


class TranslateFileRequest(BaseModel):
    """A file to translate."""

    file: Annotated[tuple[str, bytes] | str, WithJsonSchema({"type": "string", "format": "binary"})]
    source: str
    target: str
    api_key: str | None = None


class DetectRequest(BaseModel):
    """A text in an unknown language."""

    q: str
    api_key: str | None = None


class TranslateResponse(BaseModel):
    """Translations: strings for one text, lists with an item for each text for several."""

    # The names are LibreTranslate's.
    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815
    warnings: list[str] | list[list[str]] | None = Field(None, description="what could not be translated")
    doubtful: list[str] | list[list[str]] | None = Field(None, description="translated sentences to be checked")


class Error(BaseModel):
    """An error message."""

    error: str


@dataclass
class Server:
    """The endpoints of the API.

    Args:
        service: translates.
        metrics: counts.
        api_keys: keys of which `translate` and `detect` require one; none for a server open to all.
        max_characters: maximum number of characters of all texts of a request together.
        timeout: maximum seconds until a request has arrived and is translated.
    """

    service: TranslationService
    metrics: Metrics
    api_keys: Sequence[str] = ()
    max_characters: int = 10_000
    timeout: float = 30.0
    _kept: dict[str, bytes] = field(default_factory=dict, init=False)

    def __post_init__(self):
        # A part of the time, so that a few that take too long do not keep all others waiting until theirs is over, and
        # enough to start a process
        self._files = FileProcesses(max(5, math.ceil(self.timeout / 4)))

    def app(
        self, cors_origins: Sequence[str] = (), page: bool = True, allowed_hosts: Collection[str] | None = None
    ) -> FastAPI:
        """Return the application.

        Args:
            cors_origins: the web sites whose pages may use the server.
            page: whether the page is at the address /.
            allowed_hosts: host names by which the server may be called, besides localhost; None for any.
        """
        app = FastAPI(
            title="hf-vanilla-transformer",
            version=__version__,
            # They would name the address behind a proxy.
            redirect_slashes=False,
            # FastAPI's pages about the API load scripts from other servers.
            docs_url=None,
            redoc_url=None,
        )
        errors: dict[int | str, dict[str, object]] = {code: {"model": Error} for code in _ERRORS}

        # `translate` and `detect` read their parameters themselves, from JSON or a form, which FastAPI cannot declare
        # for one address; only the documentation is told about them.
        app.post(
            "/translate",
            response_model_exclude_none=True,
            responses=errors,
            openapi_extra=_body(TranslateRequest, *BODIES),
        )(self.translate)
        app.post("/detect", responses=errors, openapi_extra=_body(DetectRequest, *BODIES))(self.detect)
        app.post("/translate_file", responses=errors, openapi_extra=_body(TranslateFileRequest, WITH_FILE))(
            self.translate_file
        )
        app.get(f"{DOWNLOADS}{{name}}", response_class=Response)(self.download_file)
        app.post("/suggest", responses=errors)(self.suggest)
        app.get("/languages")(self.service.languages)
        app.get("/frontend/settings")(self.frontend_settings)
        for path, state in (("/health", self.health), ("/ready", self.ready)):
            app.get(path, responses={503: errors[503]})(state)
        app.get("/metrics", response_class=Response)(self.metrics.response)
        if page:
            app.get("/", include_in_schema=False)(page_response)
        app.exception_handler(HTTPException)(_error_response)
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization"],
        )
        app.add_middleware(Guard, hosts=allowed_hosts, origins=cors_origins)
        # Added last, so outermost: it also sees what the others answer.
        max_bytes = BYTES_PER_CHARACTER * self.max_characters + 10_000
        app.add_middleware(Watch, metrics=self.metrics, max_bytes=max_bytes, max_file_bytes=MAX_FILE_BYTES)
        return app

    async def translate(self, request: Request) -> TranslateResponse:
        """Translate a text, or several."""
        deadline = time.monotonic() + self.timeout
        wanted = await self._read(request, TranslateRequest)
        # Clients of LibreTranslate send null, too.
        document = FORMATS.get(wanted.format or "text")
        if document is None:
            raise HTTPException(400, f"Invalid request: format: expected {' or '.join(FORMATS)}")
        texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
        self._check_size(texts)

        work = self.service.translate(texts, wanted.source, wanted.target, wanted.alternatives, document)
        translations = await self._wait(request, work, deadline)

        # For several texts, each field is a list with one item per text; for a single text, it is that item.
        answer: dict[str, Sequence[object]] = {"translatedText": [translation.text for translation in translations]}
        if wanted.alternatives:
            answer["alternatives"] = [translation.alternatives for translation in translations]
        if wanted.source == AUTO:
            answer["detectedLanguage"] = [translation.detected for translation in translations]
        for name in ("warnings", "doubtful"):
            if any(getattr(translation, name) for translation in translations):
                answer[name] = [getattr(translation, name) for translation in translations]
        fields = {name: items[0] if isinstance(wanted.q, str) else items for name, items in answer.items()}
        return TranslateResponse.model_validate(fields)

    async def translate_file(self, request: Request) -> dict[str, object]:
        """Translate a file, and return where its translation can be downloaded for a while."""
        deadline = time.monotonic() + self.timeout
        wanted = await self._read(request, TranslateFileRequest, max_files=1)
        if isinstance(wanted.file, str):
            raise HTTPException(400, "Invalid request: file: expected the content of a file (curl -F file=@NAME)")
        name, content = wanted.file
        ending = Path(name).suffix.lower()
        if ending not in ENDINGS:
            raise HTTPException(400, f"Invalid request: file: expected one of {' '.join(ENDINGS)}")
        work = self._translated(content, name, wanted, load(DOCUMENTS, ending.removeprefix(".")))
        translated, remarks = await self._wait(request, work, deadline)

        # Whoever knows its first part may download the file.
        name = f"{secrets.token_urlsafe(16)}.{re.sub('[^A-Za-z0-9.]+', '-', name)[-100:]}"
        self._kept[name] = translated
        asyncio.get_running_loop().call_later(SECONDS_KEPT, self._kept.pop, name, None)
        while sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
            # the oldest
            del self._kept[next(iter(self._kept))]
        answer: dict[str, object] = {"translatedFileUrl": str(request.url_for("download_file", name=name))}
        return answer | {kind: sentences for kind, sentences in remarks.items() if sentences}

    async def _translated(
        self, content: bytes, name: str, wanted: TranslateFileRequest, format: DocumentFormat
    ) -> tuple[bytes, dict[str, list[str]]]:
        """Return a file with its translation, and its `warnings` and `doubtful` as in the answer for a text."""
        texts = await self._files.texts_of(content, name, MARKUP_PER_CHARACTER * self.max_characters + 10_000)
        self._check_size(texts)
        translations = await self.service.translate_parts(texts, wanted.source, wanted.target, format.document)
        texts = [translation.text for translation in translations]
        warnings = [warning for translation in translations for warning in translation.warnings]
        if not any(translation.sentences for translation in translations):
            warnings.append(f"{name}: no text to translate was found; text in pictures is not read.")
        doubtful = [sentence for translation in translations for sentence in translation.doubtful]
        translated = await self._files.with_texts(content, name, texts, wanted.target)
        return translated, {"warnings": warnings, "doubtful": doubtful}

    async def download_file(self, name: str) -> Response:
        """Return a translated file."""
        content = self._kept.get(name)
        if content is None:
            raise HTTPException(404, "There is no such file any more: translate it again")
        # never shown as a page of this server
        headers = {"Content-Disposition": f'attachment; filename="{name.partition(".")[2]}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def suggest(self) -> None:
        """Refuse suggestions of better translations, as LibreTranslate does where they are turned off."""
        raise HTTPException(403, "Suggestions are disabled on this server.")

    async def detect(self, request: Request) -> list[Detection]:
        """Return the languages in which a text may be, the most probable first."""
        deadline = time.monotonic() + self.timeout
        wanted = await self._read(request, DetectRequest)
        self._check_size([wanted.q])
        work = self.service.in_turn(partial(self.service.detect, wanted.q), len(wanted.q))
        return await self._wait(request, work, deadline)

    async def frontend_settings(self) -> dict[str, object]:
        """Return what a page or an app needs to know before it sends a request, as LibreTranslate does."""
        languages = self.service.languages()
        named = {language.code: {"code": language.code, "name": language.name} for language in languages}
        first, *others = [language for language in languages if language.targets]

        # With one source language there is nothing to detect.
        source = {"code": AUTO, "name": "Auto Detect"} if others else named[first.code]
        return {
            "apiKeys": bool(self.api_keys),
            "charLimit": self.max_characters,
            "filesTranslation": True,
            # milliseconds after a key, for pages that translate while somebody types
            "frontendTimeout": 500,
            "keyRequired": bool(self.api_keys),
            "language": {"source": source, "target": named[first.targets[0]]},
            "suggestions": False,
            "supportedFilesFormat": list(ENDINGS),
        }

    async def health(self) -> dict[str, str]:
        """Return 200 while the server is running, 503 if it is about to end because a model has failed for good."""
        if problem := self.service.batcher.problem(self.timeout):
            raise HTTPException(503, f"The server ends: {problem}.")
        return {"status": "ok"}

    async def ready(self) -> dict[str, str]:
        """Return 200 if texts are translated, 503 while a model fails or takes longer than a request may."""
        if not self.service.batcher.is_ready(self.timeout):
            raise HTTPException(503, "The model does not answer.")
        return {"status": "ok"}

    async def _read(self, request: Request, kind: type[_Parameters], max_files: int = 0) -> _Parameters:
        """Return the parameters of a request and check its key.

        Raises:
            HTTPException: if they are wrong, or take too long to arrive.
        """
        # before the body is read, if the key is not in it
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else request.query_params.get("api_key")
        if self.api_keys and key:
            self._check_key(request, key)
        try:
            given = await asyncio.wait_for(read_parameters(request, max_files, self._check_key), self.timeout)
        except asyncio.TimeoutError:
            raise HTTPException(408, f"The request took longer than {self.timeout:g} s to arrive.") from None
        except ClientDisconnect:
            raise HTTPException(CLIENT_CLOSED_REQUEST, "The client has disconnected.") from None

        # Before anything else is checked, so that strangers learn nothing from other errors.
        self._check_key(request, given.get("api_key"))
        try:
            # An empty parameter is a missing one, as in LibreTranslate; only a text may be empty.
            return kind.model_validate({name: value for name, value in given.items() if value != "" or name == "q"})
        except ValidationError as errors:
            # without the input, which answers and logs must not repeat
            problem = errors.errors(include_input=False, include_url=False)[0]
            name = problem["loc"][0]
            text = f"missing {name} parameter" if problem["type"] == "missing" else f"{name}: {problem['msg']}"
            raise HTTPException(400, f"Invalid request: {text}") from None

    def _check_key(self, request: Request, key: object) -> None:
        body: Body = request.state.body
        if not self.api_keys or body.has_key:
            return
        if key is None:
            raise HTTPException(403, "Please provide an API key (api_key)")
        # In constant time, and all of them, so that the time of the answer tells nothing about the keys.
        same = [hmac.compare_digest(str(key).encode(errors="replace"), own.encode()) for own in self.api_keys]
        if not any(same):
            raise HTTPException(403, "Invalid API key")
        body.accept_key()

    def _check_size(self, texts: Sequence[str]) -> None:
        # An empty text counts too: a list may have millions of them.
        size = sum(max(1, len(text)) for text in texts)
        limit = self.max_characters
        if size > limit:
            raise HTTPException(400, f"Invalid request: the text has {size:,} characters, more than {limit:,}")

    async def _wait(self, request: Request, work: Awaitable[_Result], deadline: float) -> _Result:
        """Return the result of `work`, which is dropped if its client disconnects or it takes too long."""
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(_disconnected(request))
        remaining = max(0.0, deadline - time.monotonic())
        try:
            await asyncio.wait({task, disconnect}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if not (task.done() or disconnect.done()):
                raise HTTPException(504, f"The request took longer than {self.timeout:g} s.")
            # If both are done, the work is not thrown away.
            return task.result() if task.done() else disconnect.result()
        except QueueFullError as error:
            raise HTTPException(503, str(error), {"Retry-After": str(error.retry_after)}) from None
        except RequestTooLargeError as error:
            raise HTTPException(413, str(error)) from None
        except UnsupportedError as error:
            raise HTTPException(400, str(error)) from None
        except ExchangeError as error:
            status = 413 if isinstance(error, TooLargeError) else 400
            raise HTTPException(status, f"Invalid request: {error}") from None
        finally:
            task.cancel()
            disconnect.cancel()


def _body(kind: type[BaseModel], *kinds: str) -> dict[str, object]:
    """Return the description of a request whose body, of one of these kinds, is read by `read_parameters`."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def _disconnected(request: Request) -> NoReturn:
    """Wait until the client has disconnected.

    Raises:
        HTTPException: when it has, or if it sends too much.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise HTTPException(CLIENT_CLOSED_REQUEST, "The client has disconnected.")


async def _error_response(request: Request, error: HTTPException) -> Response:
    """Return an error in LibreTranslate's form, or what its framework, Flask, answers instead of one."""
    headers = dict(error.headers or {})
    if error.status_code == 405:
        methods = {*headers["Allow"].split(", "), "OPTIONS"}
        headers["Allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
        if request.method == "OPTIONS":
            return Response(headers=headers)
    # an address with several slashes in a row is that with one, for which clients are sent there
    path = re.sub("/{2,}", "/", request.scope["path"])
    if error.status_code == 404 and path != request.scope["path"]:
        scope = {**request.scope, "path": path}
        if any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes):
            # without the host, which a proxy may change
            return RedirectResponse(request.url.replace(scheme="", netloc="", path=path), 308)
    return JSONResponse({"error": error.detail}, error.status_code, headers)
