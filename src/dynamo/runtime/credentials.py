"""Addresses of services, as messages may show them."""


def without_credentials(url: str) -> str:
    """The URL without the user and the password it may carry."""
    scheme, separator, rest = url.rpartition("://")
    # Up to the last @: a password may have a slash that its owner forgot to encode.
    return scheme + separator + rest.rpartition("@")[2]
