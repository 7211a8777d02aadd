"""The device that an operator names: ``auto``, ``cpu``, ``cuda`` or ``cuda:<number>``.

``check_device`` judges the text alone and imports no PyTorch, so that a wrong flag is refused at once;
``choose_device`` also looks at the machine and gives the name that PyTorch takes.
"""

from __future__ import annotations

import re

from common.errors import OperatorError, SetupError

_FORMS = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def check_device(text: str) -> str:
    """``text`` itself. OperatorError when it is not one of the four forms."""
    if not _FORMS.fullmatch(text):
        raise OperatorError(f"--device {text!r}: choose auto, cpu, cuda or cuda:<number>")
    return text


def choose_device(wish: str) -> str:
    """``cpu`` or ``cuda:<number>``; ``auto`` takes the first GPU if PyTorch can use one.

    OperatorError as ``check_device``; SetupError when this machine lacks the GPU that was asked for.
    """
    kind, _, index = check_device(wish).partition(":")
    if kind == "cpu":
        return "cpu"
    count = _usable_gpus()
    if kind == "auto":
        return "cuda:0" if count else "cpu"
    if count == 0:
        raise SetupError(f"--device {wish}: PyTorch finds no usable GPU here; choose cpu, or install a CUDA build")
    if int(index or 0) >= count:
        raise SetupError(f"--device {wish}: this machine has {count} GPU(s), counted from 0")
    return f"cuda:{int(index or 0)}"


def _usable_gpus() -> int:
    import torch  # seconds that the check of a flag need not wait for

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
