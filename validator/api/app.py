"""The FastAPI application: thin routes. Everything it needs is injected.

Routes do no work of their own: they admit, parse, ask the service and sign. No documentation pages, no redirects, no
exception that leaves as anything but a typed ``ErrorReply``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from fastapi import FastAPI, Request, Response
from loguru import logger
from starlette.exceptions import HTTPException

from common.blocking import in_thread
from common.errors import Rejected, RemoteError, Retryable, SetupError
from common.reductions import MAX_REDUCTION_BYTES
from common.wire import (
    ComplaintReply,
    ComplaintRequest,
    CompleteReply,
    CompleteRequest,
    Findings,
    Health,
    Heartbeat,
    HeartbeatReply,
    Message,
    ProbeAnswer,
    ProbeReply,
    ReductionReply,
    ReductionRequest,
    ReportIndex,
    Status,
    SubmissionReply,
    SubmissionRequest,
    parse,
)
from validator.api.security import Caller, Gatekeeper, path_of

MAX_REDUCTION_REQUEST_BYTES = MAX_REDUCTION_BYTES + 1024
MAX_PROBE_ANSWER_BYTES = 1024
FOR_EVER = "public, max-age=31536000, immutable"
"""A name holds the hash of its bytes."""


class Service(Protocol):
    """What the routes ask. Every method may raise ``Rejected`` or ``Retryable``."""

    def health(self) -> Health: ...

    def status(self) -> Status: ...

    def findings(self) -> Findings: ...

    def report_index(self) -> ReportIndex: ...

    def report(self, name: str) -> bytes:
        """May block."""
        ...

    def heartbeat(self, caller: Caller, beat: Heartbeat) -> HeartbeatReply: ...

    async def submit(self, caller: Caller, request: SubmissionRequest) -> SubmissionReply: ...

    async def complete(self, caller: Caller, request: CompleteRequest) -> CompleteReply: ...

    async def reduced(self, caller: Caller, request: ReductionRequest) -> ReductionReply: ...

    async def probed(self, caller: Caller, answer: ProbeAnswer) -> ProbeReply: ...

    async def complain(self, caller: Caller, request: ComplaintRequest) -> ComplaintReply: ...


def create_app(service: Service, gatekeeper: Gatekeeper) -> FastAPI:
    """The application over ``service``, behind ``gatekeeper``."""
    app = FastAPI(title="Brigade validator", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_open_routes(app, service, gatekeeper)
    _add_signed_routes(app, service, gatekeeper)
    _add_complaints(app, service, gatekeeper)
    _add_handlers(app, gatekeeper)
    return app


def _add_open_routes(app: FastAPI, service: Service, gatekeeper: Gatekeeper) -> None:
    @app.get("/v1/health")
    async def health(request: Request) -> Response:
        gatekeeper.admit_open(request)
        return gatekeeper.sign(request, json_response(service.health()))

    @app.get("/v1/status")
    async def status(request: Request) -> Response:
        gatekeeper.admit_open(request)
        return json_response(service.status())

    @app.get("/v1/findings")
    async def findings(request: Request) -> Response:
        gatekeeper.admit_open(request)
        return json_response(service.findings())

    @app.get("/v1/reports")
    async def report_index(request: Request) -> Response:
        gatekeeper.admit_open(request)
        return json_response(service.report_index())

    @app.get("/v1/reports/{name}")
    async def report(request: Request, name: str) -> Response:
        gatekeeper.admit_open(request)
        body = await in_thread(lambda: service.report(name))
        return Response(body, media_type="application/json", headers={"cache-control": FOR_EVER})


def _add_signed_routes(app: FastAPI, service: Service, gatekeeper: Gatekeeper) -> None:
    async def answer(request: Request, act: Callable[[Caller], Awaitable[Message]]) -> Response:
        caller = await gatekeeper.admit(request)
        with gatekeeper.answering(request, caller):
            return gatekeeper.sign(request, json_response(await act(caller)))

    @app.post("/v1/heartbeat")
    async def heartbeat(request: Request) -> Response:
        async def act(caller: Caller) -> Message:
            return service.heartbeat(caller, parse(Heartbeat, caller.body))

        return await answer(request, act)

    @app.post("/v1/submissions")
    async def submit(request: Request) -> Response:
        async def act(caller: Caller) -> Message:
            return await service.submit(caller, parse(SubmissionRequest, caller.body))

        return await answer(request, act)

    @app.post("/v1/submissions/complete")
    async def complete(request: Request) -> Response:
        async def act(caller: Caller) -> Message:
            return await service.complete(caller, parse(CompleteRequest, caller.body))

        return await answer(request, act)

    @app.post("/v1/reductions")
    async def reduced(request: Request) -> Response:
        async def act(caller: Caller) -> Message:
            return await service.reduced(caller, parse(ReductionRequest, caller.body, MAX_REDUCTION_REQUEST_BYTES))

        return await answer(request, act)

    @app.post("/v1/probes")
    async def probed(request: Request) -> Response:
        async def act(caller: Caller) -> Message:
            return await service.probed(caller, parse(ProbeAnswer, caller.body, MAX_PROBE_ANSWER_BYTES))

        return await answer(request, act)


def _add_complaints(app: FastAPI, service: Service, gatekeeper: Gatekeeper) -> None:
    @app.post("/v1/complaints")
    async def complain(request: Request) -> Response:
        caller = await gatekeeper.admit(request)
        with gatekeeper.answering(request, caller):
            reply = await service.complain(caller, parse(ComplaintRequest, caller.body))
            return gatekeeper.sign(request, json_response(reply))


def _add_handlers(app: FastAPI, gatekeeper: Gatekeeper) -> None:
    @app.exception_handler(RemoteError)
    async def remote_error(request: Request, error: RemoteError) -> Response:
        return gatekeeper.refuse(request, error)

    @app.exception_handler(SetupError)
    async def setup_error(request: Request, error: SetupError) -> Response:
        logger.error("a request to {} failed: {}", path_of(request), error)
        return gatekeeper.refuse(request, Retryable("the validator's storage is not available"))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return gatekeeper.refuse(request, Rejected(code, "there is nothing at this address"))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        logger.opt(exception=error).error("a request to {} failed", path_of(request))
        return gatekeeper.refuse(request, RemoteError("the validator met an error of its own; its log has it"))


def json_response(message: Message) -> Response:
    """A message as the body of a 200."""
    return Response(message.model_dump_json().encode(), media_type="application/json")
