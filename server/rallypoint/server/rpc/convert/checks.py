"""The refusal of a message that breaks the contract."""

from __future__ import annotations


class InvalidMessage(Exception):
    """A message breaks the contract."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the field, and what is wrong with it."""
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def require(holds: bool, path: str, problem: str) -> None:
    """Refuse the message unless `holds`.

    Raises:
        InvalidMessage: when it does not.
    """
    if not holds:
        raise InvalidMessage(path, problem)
