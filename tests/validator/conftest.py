"""A dataset and a world for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.data.dataset import Dataset
from tests.validator.retained import Retained
from tests.validator.world import World, make_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder: Path = tmp_path_factory.mktemp("dataset")
    return make_dataset(folder)


@pytest.fixture(scope="session")
def retained(dataset: Dataset) -> Retained:
    return Retained(dataset)


@pytest.fixture
def world(dataset: Dataset) -> World:
    return World(dataset)
