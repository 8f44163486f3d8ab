"""Who may ask: host names, other sites, tokens, and what no address can reach."""

import hmac
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from samepolicy.serve.server import Live
from tests.serve.conftest import record, running

pytestmark = pytest.mark.full

TOKEN = "a-token-of-many-letters"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A page on loopback, beside a file that must not be read."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "secret.txt").write_text("secret")
    (outer / "run").mkdir()
    record(outer / "run", {1: 0.01})
    with running(outer / "run") as started:
        yield started


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A page on every address of this machine."""
    folder = tmp_path_factory.mktemp("run")
    with running(folder, host="0.0.0.0", token=TOKEN, names=("train.example",)) as started:
        yield started


def port(live: Live) -> int:
    return int(live.url.split(":")[2].split("/")[0])


def raw(live: Live, text: str) -> bytes:
    """What a server answers to these very bytes."""
    with socket.create_connection(("127.0.0.1", port(live)), timeout=10) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode("latin-1"))
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def get(live: Live, path: str = "/", **headers: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port(live)}{path}", headers=headers, timeout=60)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "a@localhost"]
)
def test_a_foreign_host_is_refused(live: Live, host: str):
    answer = raw(live, f"GET / HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    assert answer.split()[1] in (b"421", b"400")
    assert b"my run" not in answer
    assert b"<html" not in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "127.0.0.7"])
def test_names_of_this_machine_are_answered(live: Live, host: str):
    assert raw(live, f"GET / HTTP/1.1\nHost: {host}\nConnection: close\n\n").split()[1] == b"200"


def test_no_host_and_two_hosts_are_refused(live: Live):
    assert raw(live, "GET / HTTP/1.0\n\n").split()[1] == b"421"
    two = raw(live, "GET / HTTP/1.1\nHost: localhost\nHost: evil.example\nConnection: close\n\n")
    assert two.split()[1] in (b"400", b"421")
    absolute = raw(live, "GET http://evil.example/ HTTP/1.1\nHost: evil.example\nConnection: close\n\n")
    assert absolute.split()[1] == b"421"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/static/../../secret.txt",
        "/static/..%2f..%2fsecret.txt", "/static/%2e%2e/%2e%2e/secret.txt",
        "/step/..%2f..%2fsecret.txt", "/step/%00", "/step/1e3", "/step/٣", "/step/" + "9" * 400, "/static/page.py",
        "/static//etc/passwd", "//etc/passwd", "/step/1/next/x", "/run.json", "/part-00000001-000000.parquet",
    ],
)  # fmt: skip
def test_no_address_reaches_a_file(live: Live, path: str):
    answer = raw(live, f"GET {path.encode().decode('latin-1')} HTTP/1.1\nHost: localhost\nConnection: close\n\n")
    assert answer.split()[1] in (b"404", b"400")
    assert b"secret" not in answer.partition(b"\r\n\r\n")[2]


def test_only_get_is_answered(live: Live):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        answer = raw(live, f"{method} / HTTP/1.1\nHost: localhost\nContent-Length: 0\nConnection: close\n\n")
        assert answer.split()[1] == b"405", method


@pytest.mark.parametrize("path", ["/", "/data", "/step/1", "/static/live.js", "/nothing", "/step/99", "/favicon.ico"])
def test_every_answer_is_locked(live: Live, path: str):
    headers = get(live, path, origin="http://evil.example").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy.replace("style-src-attr 'unsafe-inline'", "")
    assert "unsafe-eval" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control-")]
    assert "server" not in headers


def test_other_sites_may_only_link(live: Live):
    other = {"sec-fetch-site": "cross-site"}
    assert get(live, "/data", **other, **{"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}).status_code == 403
    assert (
        get(live, "/step/1", **other, **{"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}).status_code == 403
    )
    assert get(live, "/", **other, **{"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}).status_code == 200
    assert get(live, "/data", **{"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}).status_code == 403
    assert get(live, "/data", **{"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


def test_the_page_itself_has_no_inline_code(live: Live):
    page = get(live).text
    assert "<script>" not in page
    assert " onclick=" not in page
    assert "style=" not in page


@pytest.mark.parametrize("path", ["/", "/data", "/events", "/step/1", "/static/live.js", "/nothing"])
def test_without_the_token_there_is_nothing(open_to_all: Live, path: str):
    assert get(open_to_all, path).status_code == 401
    for wrong in ("wrong", TOKEN[:-1], f"{TOKEN}x", "", "é"):
        assert get(open_to_all, f"{path}?token={wrong}").status_code == 401
    assert get(open_to_all, path, authorization=f"Bearer {TOKEN}x").status_code == 401
    assert get(open_to_all, path, cookie=f"samepolicy-{port(open_to_all)}={TOKEN}").status_code == 401


def test_the_token_gives_a_cookie_and_leaves_the_address(open_to_all: Live):
    base = f"http://127.0.0.1:{port(open_to_all)}"
    assert open_to_all.url == f"{base}/?token={TOKEN}"
    with httpx.Client(base_url=base) as client:
        first = client.get(f"/?token={TOKEN}")
        assert (first.status_code, first.headers["location"]) == (303, "/")
        said = first.headers["set-cookie"]
        assert TOKEN not in said
        assert "HttpOnly" in said
        assert "SameSite=Lax" in said
        assert client.get("/").status_code == 200
        assert client.get("/data").json()["state"]["parts"] == 0
        assert client.get(f"/step/7?token={TOKEN}", headers={"cookie": ""}).headers["location"] == "/step/7"
    assert get(open_to_all, "/data", authorization=f"Bearer {TOKEN}").status_code == 200
    elsewhere = raw(open_to_all, f"GET //evil.example/?token={TOKEN} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")
    assert b"location: /\r\n" in elsewhere


def test_tokens_are_compared_in_constant_time(open_to_all: Live, monkeypatch: pytest.MonkeyPatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    get(open_to_all, "/?token=wrong")
    get(open_to_all, "/", authorization="Bearer wrong")
    assert compared.count((b"wrong", TOKEN.encode())) == 2


def test_elsewhere_names_are_refused_and_addresses_answered(open_to_all: Live):
    def status(host: str) -> bytes:
        head = f"GET /data HTTP/1.1\nHost: {host}\nAuthorization: Bearer {TOKEN}\nConnection: close\n\n"
        return raw(open_to_all, head).split()[1]

    assert status("evil.example") == b"421"
    assert [status(h) for h in ("192.0.2.7:8765", "[2001:db8::1]", "train.example", socket.gethostname())] == [
        b"200"
    ] * 4


def test_a_token_is_made_where_one_is_needed(folder: Path):
    with running(folder, host="0.0.0.0") as live:
        token = live.url.partition("token=")[2]
        assert len(token) >= 40
        assert get(live).status_code == 401
        assert get(live, "/", authorization=f"Bearer {token}").status_code == 200


def test_nonsense_ends_nothing(live: Live):
    for text in (
        "\n\n\n\n",
        "GET\n\n",
        "GET / HTTP/1.1\nHost: localhost\nX: " + "y" * 100_000 + "\n\n",
        "\x16\x03\x01\x02",
    ):
        with socket.create_connection(("127.0.0.1", port(live)), timeout=5) as connection:
            connection.sendall(text.replace("\n", "\r\n").encode("latin-1"))
    assert get(live).status_code == 200
