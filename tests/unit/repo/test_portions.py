"""How much a soak does."""

from __future__ import annotations

import pytest

from support.tries.portions import choose_portion


@pytest.mark.parametrize(("env", "expected"), [({}, 2), ({"WHOLE": ""}, 2), ({"WHOLE": "1"}, 10)])
def test_portion(env: dict[str, str], expected: int) -> None:
    """A part, and the whole when it is asked for."""
    assert expected == choose_portion(10, 2, env)
