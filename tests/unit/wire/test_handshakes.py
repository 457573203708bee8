"""What errors of TLS mean, in the same words wherever they come from."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.handshakes import Fault, describe_fault, explain, find_refusal, read_fault

SECURE = Access(is_tls=True)
WITH_CERTIFICATE = Access(is_tls=True, cert_file="a.pem", key_file="a.key")


def verification(code: int) -> ssl.SSLError:
    error: Any = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error  # type: ignore[no-any-return]


def failure(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "access", "fault"),
    [
        (verification(9), SECURE, Fault.NOT_YET),
        (verification(10), SECURE, Fault.EXPIRED),
        (verification(62), SECURE, Fault.WRONG_NAME),
        (verification(64), SECURE, Fault.WRONG_NAME),
        (verification(20), SECURE, Fault.AUTHORITY),
        (failure("WRONG_VERSION_NUMBER"), SECURE, Fault.NO_TLS),
        (failure("PACKET_LENGTH_TOO_LONG"), SECURE, Fault.NO_TLS),
        (failure("TLSV13_ALERT_CERTIFICATE_REQUIRED"), SECURE, Fault.CLIENT_WANTED),
        (failure("TLSV1_ALERT_UNKNOWN_CA"), WITH_CERTIFICATE, Fault.CLIENT_REFUSED),
        (failure("NO_CIPHERS_AVAILABLE"), SECURE, Fault.OTHER),
    ],
)
def test_errors_of_python_are_read(error: ssl.SSLError, access: Access, fault: Fault) -> None:
    """By their numbers and names, which do not change with the version of OpenSSL."""
    assert read_fault(error, access) is fault


def test_grpc_and_python_say_the_same() -> None:
    """An agent and a command have the same line for the same fault."""
    wrong_name = "UNAUTHENTICATED: Hostname Verification Check failed."

    assert explain("WRONG_VERSION_NUMBER", "head:1", SECURE) == describe_fault(
        failure("WRONG_VERSION_NUMBER"), SECURE, "head"
    )
    assert explain(wrong_name, "head:1", SECURE) == describe_fault(verification(62), SECURE, "head")
    assert describe_fault(failure("NO_CIPHERS_AVAILABLE"), SECURE, "head") == (
        "TLS handshake failed: no ciphers available"
    )
    assert find_refusal(PLAIN) is Fault.CLIENT_WANTED
