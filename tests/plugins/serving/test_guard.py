"""Requests that a web page makes its reader's browser send to a server on the same machine."""

import pytest
from live_server import text

SITE = "https://example.org"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5000", "LOCALHOST", "a.localhost:80", "127.0.0.1:5000", "127.8.9.1", "[::1]:5000"]
)
def test_a_server_of_this_machine_is_called_by_its_names_and_addresses(serve, host):
    assert serve(allowed_hosts=[])("GET", "/languages", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["example.org", "example.org:5000", "localhost.example.org", "127.0.0.1.nip.io", "127.0.0.1@example.org", "]"],
)
@pytest.mark.parametrize("path", ["/", "/languages", "/openapi.json", "/nowhere", "/translate"])
def test_another_name_that_points_to_this_machine_is_refused_everywhere(serve, host, path):
    answer = serve(allowed_hosts=[])("POST" if path == "/translate" else "GET", path, headers={"Host": host})
    assert answer.status == 403
    assert "--allowed_hosts" in answer.body["error"]


def test_names_that_are_allowed_and_no_others(serve):
    send = serve(allowed_hosts=["mt.example.org"])
    assert send("GET", "/languages", headers={"Host": "MT.example.org:8080"}).status == 200
    assert send("GET", "/languages", headers={"Host": "example.org"}).status == 403
    assert serve()("GET", "/languages", headers={"Host": "example.org"}).status == 200


@pytest.mark.parametrize("origin", [SITE, "http://127.0.0.1:1", "http://localhost", "null", "file://", "http://["])
def test_pages_of_other_sites_are_refused(serve, origin):
    send = serve()
    for form in (True, False):
        answer = send("POST", "/translate", text("Hi."), headers={"Origin": origin}, form=form)
        assert answer.status == 403
        assert "--cors_origin" in answer.body["error"]


def test_the_servers_own_page_is_not(serve):
    send = serve(allowed_hosts=[])
    for host in (f"127.0.0.1:{send.port}", f"localhost:{send.port}"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert send("POST", "/translate", text("Hi."), headers=headers).status == 200
    # behind a proxy that speaks TLS
    behind = {"Host": "mt.example.org", "Origin": "https://mt.example.org"}
    assert serve(allowed_hosts=["mt.example.org"])("POST", "/translate", text("Hi."), headers=behind).status == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [("mt.example.org:443", "https://mt.example.org"), ("mt.example.org:80", "http://mt.example.org")],
)
def test_default_ports_may_be_named_on_one_side_only(serve, host, origin):
    send = serve(allowed_hosts=["mt.example.org"])
    assert send("POST", "/translate", text("Hi."), headers={"Host": host, "Origin": origin}).status == 200


def test_a_proxy_may_change_the_host_name_if_the_browser_says_that_the_page_is_the_servers_own(serve):
    headers = {"Host": "127.0.0.1:5000", "Origin": "https://mt.example.org", "Sec-Fetch-Site": "same-origin"}
    assert serve(allowed_hosts=[])("POST", "/translate", text("Hi."), headers=headers).status == 200
    headers["Sec-Fetch-Site"] = "cross-site"
    assert serve(allowed_hosts=[])("POST", "/translate", text("Hi."), headers=headers).status == 403


@pytest.mark.parametrize("allowed", [SITE, "*"])
def test_pages_of_a_site_that_is_named_may_use_it(serve, allowed):
    answer = serve(cors_origins=[allowed])("POST", "/translate", text("Hi."), headers={"Origin": SITE})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == allowed


@pytest.mark.parametrize(
    ("origin", "method", "wanted", "status"),
    [
        (SITE, "POST", "content-type", 200),
        (SITE, "POST", "authorization", 200),
        (SITE, "DELETE", "content-type", 400),
        (SITE, "POST", "x-secret", 400),
        ("https://elsewhere.org", "POST", "content-type", 403),
    ],
)
def test_a_preflight_allows_only_requests_that_the_api_takes(serve, origin, method, wanted, status):
    headers = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": wanted}
    answer = serve(cors_origins=[SITE])("OPTIONS", "/translate", headers=headers)
    assert answer.status == status
