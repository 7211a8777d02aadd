"""What storage says about an object, kept apart from what it says about itself.

Invariant: only "there is none", a wrong size and a wrong hash are facts about an object, and final. Any other refusal
(access denied while keys are changed, a service that starts, a server error without a name) is the storage's own
trouble: it becomes ``Retryable``, so that nobody is rejected, no round given up and no score lost for an outage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import Rejected, Retryable

FACTS = frozenset({"object_missing", "too_large", "size_mismatch", "checksum_mismatch"})
"""Codes of refusals that say something about the object."""


@contextmanager
def only_facts() -> Iterator[None]:
    """Storage calls in here raise ``Rejected`` for facts about the object alone, and ``Retryable`` otherwise."""
    try:
        yield
    except Rejected as refusal:
        if refusal.code in FACTS:
            raise
        raise Retryable(f"the storage does not answer as it should: {refusal}") from refusal
