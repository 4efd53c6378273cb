"""Addresses: where other machines reach this one, and those of services as messages may show them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
_BEYOND = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses reserved for documentation: the route to them is the default route."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; a name other than localhost may lead anywhere."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def listening_address(environ: Mapping[str, str]) -> str:
    """Where a process listens that was given no address: everywhere in a pod, whose probes and Services are outside."""
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return LOOPBACK
    return "::" if ":" in own_address() else EVERYWHERE


def own_address(peers: Iterable[str] = (), family: int = socket.AF_UNSPEC) -> str:
    """The address of the interface towards the first of `peers` on another machine, else of the default route.

    A machine may have no default route and still share a network with its peers. No packet is sent.
    """
    beyond = [host for of, host in _BEYOND.items() if family in (socket.AF_UNSPEC, of)]
    for host in (*peers, *beyond):
        for address in _towards(host, family):
            if not ip_address(address).is_loopback:
                return address
    return "::1" if family == socket.AF_INET6 else LOOPBACK


def _towards(host: str, family: int) -> Iterator[str]:
    try:
        found = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)
    except (OSError, ValueError):  # connecting to it will report what is wrong with the name
        return
    for of, kind, protocol, _, where in found:
        try:
            with socket.socket(of, kind, protocol) as probe:
                probe.connect(where)
                address = str(probe.getsockname()[0])
        except OSError:
            continue
        if "%" not in address:  # an address with a zone means nothing on another machine
            yield address


def without_credentials(url: str) -> str:
    """The URL without the user and the password it may carry."""
    scheme, separator, rest = url.rpartition("://")
    # Up to the last @: a password may have a slash that its owner forgot to encode.
    return scheme + separator + rest.rpartition("@")[2]
