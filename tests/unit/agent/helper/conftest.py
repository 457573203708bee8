"""What tests of the helper share: a host, the output of its workers, and their ends."""

from collections.abc import AsyncIterator, Iterator

import pytest

from rallypoint.agent.helper.host import WorkerHost
from support.processes.processes import Conversation, Lines


@pytest.fixture
async def talk() -> AsyncIterator[Conversation]:
    conversation = Conversation(WorkerHost.launch())
    yield conversation
    await conversation.host.close()


@pytest.fixture
def output() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()
