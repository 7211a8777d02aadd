"""Tokenizers by identifier. Today there is one: bytes, whose tokens are the UTF-8 bytes of the text.

Invariant: the identifier in a dataset's index fixes what every token means, so a tokenizer never changes under its
name. Token 0 (NUL, which prepared text never holds) ends a document.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from common.errors import OperatorError

Tokens = npt.NDArray[np.integer]


class Tokenizer(Protocol):
    """Text to tokens and back."""

    id: str
    vocab_size: int
    dtype: Literal["u1", "u2", "u4"]
    """Little-endian storage of one token: ``u1``, ``u2`` or ``u4``."""
    end_of_document: int

    def encode(self, text: str) -> Tokens:
        """The tokens of ``text``, without an end."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of ``tokens``; what is not text becomes U+FFFD."""
        ...


class ByteTokenizer:
    """One token a byte."""

    id = "bytes"
    vocab_size = 256
    dtype: Literal["u1", "u2", "u4"] = "u1"
    end_of_document = 0

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)

    def decode(self, tokens: Tokens) -> str:
        return bytes(tokens.astype(np.uint8)).decode("utf-8", errors="replace")


TOKENIZERS: dict[str, Tokenizer] = {"bytes": ByteTokenizer()}


def tokenizer_named(name: str) -> Tokenizer:
    """The tokenizer with this identifier. Raises OperatorError with the ones there are."""
    if name not in TOKENIZERS:
        raise OperatorError(f"unknown tokenizer {name[:40]!r}: choose one of {', '.join(TOKENIZERS)}")
    return TOKENIZERS[name]
