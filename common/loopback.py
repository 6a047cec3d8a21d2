"""Which hosts are this machine's own."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on the host: a name, or an address, in brackets or not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
