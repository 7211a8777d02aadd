"""Which of the suite's processes lives through the stories of real processes, and which runs all other tests.

A story (tests/integration) waits for much of its time, and the other tests don't: side by side they use a machine well,
and more than two stories at once are more than two cores carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

STORIES = "tests/integration/"
AT_ONCE = 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Of ``--dist loadfile``: stories go to the first ``AT_ONCE`` processes alone, and begin at once."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Lanes(LoadFileScheduling):
        def _assign_work_unit(self, node: WorkerController) -> None:
            tells = node in self.nodes[:AT_ONCE]
            stories = [file for file in self.workqueue if file.startswith(STORIES)]
            if not tells and len(stories) == len(self.workqueue):
                node.shutdown()  # what is left is not for it
                return
            first = next(file for file in self.workqueue if file.startswith(STORIES) == (tells and bool(stories)))
            self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return Lanes(config, log)
