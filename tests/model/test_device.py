"""Which device a flag means, on machines with and without GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.errors import OperatorError, SetupError
from common.model import device
from common.model.device import check_device, choose_device


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(device, "_usable_gpus", lambda: count)


@pytest.mark.parametrize("text", ["tpu", "", "cuda:", "cuda:x", "cudaX", "cuda:-1", "cuda:¹", "cpu:0", "CPU", "cpu\n"])
def test_what_names_no_device_is_refused(text: str) -> None:
    for judge in (check_device, choose_device):
        with pytest.raises(OperatorError, match="choose auto, cpu, cuda or cuda:<number>"):
            judge(text)


@pytest.mark.parametrize(
    ("wish", "count", "got"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda:0"), ("cuda:1", 2, "cuda:1")],
)
def test_a_wish_becomes_a_name_for_pytorch(monkeypatch: pytest.MonkeyPatch, wish: str, count: int, got: str) -> None:
    with_gpus(monkeypatch, count)
    assert choose_device(wish) == got


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    with pytest.raises(SetupError, match="no usable GPU"):
        choose_device("cuda")
    with_gpus(monkeypatch, 2)
    with pytest.raises(SetupError, match=r"2 GPU"):
        choose_device("cuda:99")


def test_the_check_of_a_flag_does_not_wait_for_pytorch() -> None:
    code = "import sys; from common.model.device import check_device; check_device('cuda:1'); assert 'torch' not in "
    code += "sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
