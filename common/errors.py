"""The error tree: what went wrong decides who acts, so every class has exactly one reader.

``OperatorError`` and ``SetupError`` end a command with exit code 2 or 3 and one line that says what to do.
``Retryable`` is repeated with backoff, ``Rejected`` is final for this request and carries a typed code that both
ends know, ``Fatal`` stops the component that met it.
"""

from __future__ import annotations


class BrigadeError(Exception):
    """Base of all errors that Brigade raises on purpose."""

    exit_code = 1


class OperatorError(BrigadeError, ValueError):
    """The command line, environment or file of the operator is wrong. Exit code 2."""

    exit_code = 2


class SetupError(BrigadeError):
    """The machine or a service it needs is not as it must be. Exit code 3."""

    exit_code = 3


class RemoteError(BrigadeError):
    """The other end of a connection failed or refused."""


class Retryable(RemoteError):
    """A passing fault: the same request may succeed later.

    ``retry_after_s`` is what the other end asked for, when it asked.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Rejected(RemoteError):
    """A final refusal. ``code`` is a stable snake_case word (``wrong_key``, ``not_member`` …) that programs compare."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Fatal(RemoteError):
    """Going on would do harm: the component stops and says why."""
