"""Repeating a request after a passing fault: exponential backoff with jitter, honouring what the other end asked for.

Invariant: only ``Retryable`` is repeated, and only what the caller declared idempotent by coming here; conditional
puts never do. The wait is drawn from [half, whole] of the exponential step, so that many clients that failed in the
same second do not come back in the same second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from common import timeouts
from common.errors import OperatorError, Retryable

T = TypeVar("T")
Sleep = Callable[[float], None]
Uniform = Callable[[], float]  # a draw from [0, 1)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently; ``attempts`` counts the first one."""

    attempts: int = 5
    first_wait_s: float = timeouts.RETRY_FIRST_S
    longest_wait_s: float = timeouts.RETRY_MOST_S
    longest_asked_wait_s: float = timeouts.LONGEST_ASKED_WAIT_S

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_wait_s < 0 or self.longest_wait_s < self.first_wait_s:
            raise OperatorError("a retry policy needs attempts ≥ 1 and 0 ≤ first wait ≤ longest wait")

    def wait_s(self, failures: int, asked_s: float | None, uniform: Uniform) -> float:
        """Seconds to wait after ``failures`` ≥ 1 failures in a row."""
        step_s = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 30))
        jittered_s = step_s * (0.5 + 0.5 * uniform())
        return max(jittered_s, min(asked_s or 0.0, self.longest_asked_wait_s))


NO_RETRIES = RetryPolicy(attempts=1)


def with_retries(action: Callable[[], T], policy: RetryPolicy, *, sleep: Sleep, uniform: Uniform) -> T:
    """Run ``action`` until it succeeds, raises something final, or the attempts are used up (the last error)."""
    for failures in range(1, policy.attempts):
        try:
            return action()
        except Retryable as fault:
            sleep(policy.wait_s(failures, fault.retry_after_s, uniform))
    return action()
