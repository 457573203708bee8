"""What the tests of agents share."""

import pytest

from support.languages.examples import share_nodejs_client
from support.languages.nodejs_client import Client


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The example in Node.js, installed."""
    return Client(share_nodejs_client(tmp_path_factory))
