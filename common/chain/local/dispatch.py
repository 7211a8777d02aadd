"""Run a decoded call on the state: find its handler, keep its writes if it succeeds, drop them if it fails.

As in FRAME, a call is transactional, its failure is an event and not an absence, and a nested call (sudo, batch)
runs in the same block with an origin of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.chain.local.state import MutableState, split
from common.chain.local.storage import Overlay

Handler = Callable[..., None]
HANDLERS: dict[tuple[str, str], Handler] = {}
MAX_DEPTH = 8


class DispatchFailed(Exception):
    """The call failed. ``error`` is a codec value of ``sp_runtime::DispatchError``."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


BAD_ORIGIN = "BadOrigin"


@dataclass
class Context:
    """What a handler works with: the state, who called, and the block's events."""

    state: MutableState
    origin: str | None  # SS58 of the signer; None for root
    events: list[tuple[str, str, Any]] = field(default_factory=list)
    depth: int = 0

    @property
    def block(self) -> int:
        """The number of the block being built."""
        return self.state.block

    def signer(self) -> str:
        """The signing account; fails for root."""
        if self.origin is None:
            raise DispatchFailed(BAD_ORIGIN)
        return self.origin

    def require_root(self) -> None:
        """Fail unless sudo dispatched this call."""
        if self.origin is not None:
            raise DispatchFailed(BAD_ORIGIN)

    def fail(self, error: str) -> DispatchFailed:
        """The exception for a pallet's error, by the name it has in the metadata."""
        return DispatchFailed(self.state.runtime.errors[split(error)])

    def emit(self, event: str, attributes: Any) -> None:
        """Deposit an event, e.g. ``NetworkAdded``."""
        pallet, name = split(event)
        self.events.append((pallet, name, attributes))

    def nested(self, call: dict[str, Any], origin: str | None) -> None:
        """Dispatch ``call`` inside this one; its failure is raised."""
        if self.depth >= MAX_DEPTH:
            raise self.fail("CallDisabled")
        dispatch(Context(self.state, origin, self.events, self.depth + 1), call)


def call(pallet: str, *names: str) -> Callable[[Handler], Handler]:
    """Register a handler; it takes the context and the call's arguments by name."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[pallet, name] = handler
        return handler

    return register


def dispatch(context: Context, decoded: dict[str, Any]) -> None:
    """Run ``decoded`` (as ``decode_call`` gives it). Raises ``DispatchFailed`` and leaves no trace when it fails."""
    handler = HANDLERS.get((decoded["call_module"], decoded["call_function"]))
    if handler is None:
        raise context.fail("CallDisabled")
    outer = context.state
    overlay = Overlay(outer.source)
    mark = len(context.events)
    inner = Context(MutableState(outer.runtime, overlay, outer.block), context.origin, context.events, context.depth)
    try:
        handler(inner, **{argument["name"]: argument["value"] for argument in decoded["call_args"]})
    except DispatchFailed:
        del context.events[mark:]
        raise
    outer.overlay.merge(overlay.changes)
