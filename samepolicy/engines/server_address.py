"""Where a server is and how it is reached: its address, the API key, and what the environment says about both."""

import os
import ssl
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from samepolicy.errors import InputError, MissingDependencyError

KEY = "SAMEPOLICY_API_KEY"
"""The environment variable that holds the API key."""

ENCODINGS = ("identity", "gzip", "deflate")
"""How an answer may be packed: in ways that cannot hide more than about a thousandfold."""


def address(url: str) -> str:
    """The address of a server, without a slash at its end.

    Raises:
        InputError: no http address, or one with a name and password in it.

    >>> address("localhost:8000/"), address("https://host/v1")
    ('http://localhost:8000', 'https://host')
    """
    whole = url if "://" in url else f"http://{url}"
    if "@" in whole or "?" in whole:
        raise InputError(f"The address of a server must hold no password or query; put the key into {KEY}.")
    try:
        parts = urlsplit(whole)
        name = parts.hostname or ""
        good = parts.scheme in ("http", "https") and parts.port != 0 and bool(name.encode("idna"))
    except ValueError:  # a port that is no number, a bracket too few, or a name that no host can have
        good = False
    if not good or not whole.isprintable() or " " in whole:
        raise InputError(f"{url[:200]!r} is not the address of a server; write it as http://localhost:8000.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def plain_local(url: str) -> bool:
    """Whether an address is of this machine, and needs no certificates, which the environment names, too.

    >>> plain_local("http://LOCALHOST:8000"), plain_local("http://[::1]:8000"), plain_local("http://localhost.org")
    (True, True, False)
    """
    parts = urlsplit(url)
    try:
        name = parts.hostname or ""
        return parts.scheme == "http" and (name == "localhost" or ip_address(name).is_loopback)
    except ValueError:
        return False


def api_key() -> str | None:
    """The API key of the environment, without white space around it; None where there is none.

    Raises:
        InputError: it holds a sign that no header can carry; the message does not show it.
    """
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"The key in {KEY} holds a sign that no request can carry; set it again.")
    return key or None


def connections(httpx: Any, url: str, key: str | None, *, concurrency: int, timeout: float) -> Any:
    """A pool of connections to a server; nothing is sent yet.

    Args:
        httpx: the module.
        url: the address.
        key: the API key; it goes to this address and to no other.
        concurrency: connections at most.
        timeout: longest wait for the next part of an answer, seconds.

    Raises:
        InputError: a proxy or a certificate file of the environment, or the address, cannot be used.
        MissingDependencyError: the environment's proxy needs a further package.
    """
    key_header = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise InputError(
            f"{url} is not the address of a server ({error}); write it as http://localhost:8000."
        ) from error
    try:
        return httpx.Client(
            base_url=url,
            headers={"Accept-Encoding": ", ".join(ENCODINGS[1:]), **key_header},
            timeout=httpx.Timeout(timeout, connect=min(10.0, timeout)),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            trust_env=not plain_local(url),  # no proxy between two processes of one machine
            follow_redirects=False,
            verify=url.startswith("https"),  # reading the certificates takes a while
        )
    except ImportError as error:
        raise MissingDependencyError(
            "The proxy that the environment names needs socksio, which is not installed; run pip install "
            "'httpx[socks]', or unset ALL_PROXY, HTTP_PROXY and HTTPS_PROXY."
        ) from error
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"The certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read ({error}); name a PEM file."
        ) from error
    except (ValueError, httpx.InvalidURL):  # their words may hold the proxy's password
        raise InputError(
            f"{url} cannot be reached by way of the environment; mend ALL_PROXY, HTTP_PROXY, HTTPS_PROXY or NO_PROXY, "
            "or unset them."
        ) from None
