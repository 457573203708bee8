"""Addresses of etcd: what can be written, and one line for what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.server.etcd.address import AddressInvalid, EtcdAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("etcd://h1:1,h2/p", EtcdAddress(("h1:1", "h2:2379"), "/p")),
        ("etcd://[::1]:5/a/b.c-d/", EtcdAddress(("[::1]:5",), "/a/b.c-d")),
        (
            "etcd://h/p?ca=/ca.pem&cert=c&key=k&user=u&password-file=f",
            EtcdAddress(("h:2379",), "/p", Path("/ca.pem"), Path("c"), Path("k"), "u", Path("f")),
        ),
    ],
)
def test_address_is_read(text: str, address: EtcdAddress) -> None:
    assert address == parse_address(text)


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("etcd://h/p?user=u&password-file=f", True),
        ("etcd://127.0.0.1,h/p?user=u&password-file=f", True),
        ("etcd://127.0.0.1,[::1],localhost/p?user=u&password-file=f", False),
        ("etcd://h/p?user=u&password-file=f&ca=/ca.pem", False),
        ("etcd://h/p", False),
    ],
)
def test_password_that_others_can_read(text: str, *, warns: bool) -> None:
    """Only TLS hides it, except on one's own host."""
    assert warns == parse_address(text).exposes_password


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("sqlite:x", "not an address of etcd"),
        ("etcd://h", "no prefix"),
        ("etcd:///p", "not an endpoint"),
        ("etcd://h/", "no prefix"),
        ("etcd://h,/p", "not an endpoint"),
        ("etcd://h:0/p", "not an endpoint"),
        ("etcd://h:65536/p", "not an endpoint"),
        ("etcd://u:p@h/p", "not an endpoint"),
        ("etcd://h/p p", "wrong one"),
        ("etcd://h/p?tls=1", "unknown option 'tls'"),
        ("etcd://h/p?cert=c&key=k", "TLS to etcd"),
        ("etcd://h/p?user=u", "password-file"),
        (f"etcd://{','.join('h' * 17)}/p", "too many"),
    ],
)
def test_wrong_address_is_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(AddressInvalid, match=part) as caught:
        parse_address(text)

    assert "\n" not in str(caught.value)
