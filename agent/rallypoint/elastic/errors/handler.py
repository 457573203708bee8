"""Writes the error that ends a process to the file that $TORCHELASTIC_ERROR_FILE names."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import time
import traceback
import warnings
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)


class ErrorHandler:
    """Records an exception, or the root cause of a failed launch, as JSON.

    A subclass may override `initialize` and `record_exception`.
    """

    def _get_error_file_path(self) -> str | None:
        """Return the error file; None or empty: nothing is written."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def initialize(self) -> None:
        """Prepare the process; called before the function that is recorded.

        Prints the stacks of all threads when a fault of the interpreter ends the process.
        """
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:  # standard error is not a file
            text = f"stacks will not be printed after a fault: {type(error).__name__}: {error}"
            warnings.warn(text, stacklevel=2)

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        """Write the text, or warn."""
        try:
            with open(file_path, "w", encoding="utf-8") as file:
                file.write(error_msg)
        except OSError as error:
            warnings.warn(f"the error cannot be written to {file_path}: {error}", stacklevel=2)

    def record_exception(self, e: BaseException) -> None:
        """Write an exception with its traceback; do nothing without an error file."""
        path = self._get_error_file_path()
        if not path:
            return
        seconds = int(time.time())  # noqa: TID251  # the form requires it
        extra = {
            "py_callstack": "".join(traceback.format_exception(e)),
            "timestamp": str(seconds),
        }
        message = {"message": f"{type(e).__name__}: {e}", "extraInfo": extra}
        self._write_error_file(path, json.dumps({"message": message}))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Set the exit code in an error, because the process that wrote it did not know it.

        Args:
            rootcause_error_file: where the error was read, for people.
            rootcause_error: the error; changed in place.
            error_code: exit code of its process, or minus the signal that killed it.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
            return
        why = "no message" if message is None else "a message without fields"
        logger.warning(
            "%s has %s: exit code %s is not added", rootcause_error_file, why, error_code
        )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error to this process's own error file.

        Args:
            rootcause_error_file: the child's error file.
            error_code: its exit code, or minus its signal; 0: leave what the file holds.

        Raises:
            OSError, ValueError: the child's file cannot be read.
        """
        with open(rootcause_error_file, encoding="utf-8") as file:
            error = json.load(file)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, error, error_code)
        own = self._get_error_file_path()
        if not own:
            logger.error("no error file of this process: %s is not copied", rootcause_error_file)
            return
        self._rm(own)
        self._write_error_file(own, json.dumps(error))
        logger.info("the error of %s was copied to %s", rootcause_error_file, own)

    def _rm(self, my_error_file: str) -> None:
        """Remove an error that an earlier process left under the same name, and log it.

        A child that inherits the variable may write there before it gets its own.
        """
        with suppress(FileNotFoundError):
            with open(my_error_file, encoding="utf-8", errors="replace") as file:
                logger.warning("%s is replaced; it held: %s", my_error_file, file.read())
            os.remove(my_error_file)


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses by default."""
    return ErrorHandler()
