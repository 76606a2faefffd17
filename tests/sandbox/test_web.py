"""The status page in a real browser, on a real service whose programs print what they like."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from browser import Browser, open_browser
from sandbox.make import KEYS
from sandbox.service import Service, running_service

pytestmark = pytest.mark.slow

HOSTILE = "</pre><script>window.hacked='log'</script><img src=x onerror=\"window.hacked='image'\">"
HOSTILE_LABEL = "<img src=x onerror=\"window.hacked='label'\">"
WEB = Path(__file__).parents[2] / "sandbox_service" / "src" / "sandbox_service" / "web"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), keys=KEYS) as running:
        yield running


def submit(service: Service, code: str, key: str = "s3cret", **fields: object) -> str:
    with service.client(key) as client:
        answer = client.post("/api/v1/jobs", json={"code": code, "data_dir": "tiny", **fields})
        assert answer.is_success, answer.text
        return answer.json()["job_id"]


def ended(service: Service, job_id: str) -> dict[str, object]:
    with service.client("s3cret") as client:
        return client.get(f"/api/v1/jobs/{job_id}", params={"wait": 60}).json()


def open_with_key(browser: Browser, service: Service, fragment: str = "", key: str = "s3cret") -> None:
    browser.open(service.url + "/page.css")
    browser.run(f"sessionStorage.setItem('key', {json.dumps(key)})")
    browser.open(f"{service.url}/{fragment}")


def text(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).textContent"


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab(browser: Browser, service: Service) -> None:
    browser.open(service.url + "/")
    browser.until("byId('ask').open")
    browser.write("wrong")
    browser.press("Enter")
    browser.until("byId('ask').open && byId('ask-why').textContent.includes('does not know')")
    assert browser.run("sessionStorage.getItem('key')") is None
    browser.write("s3cret")
    browser.press("Enter")
    browser.until("document.querySelectorAll('#workers li').length === 2")
    assert browser.run("[sessionStorage.getItem('key'), localStorage.length, document.cookie]") == ["s3cret", 0, ""]
    assert "s3cret" not in browser.run("document.documentElement.outerHTML + location.href")
    browser.click("#forget")
    browser.until("byId('ask').open")
    assert browser.run("[sessionStorage.length, byId('jobs').children.length]") == [0, 0]


def test_a_jobs_log_is_followed_until_its_end_and_hostile_output_is_text(browser: Browser, service: Service) -> None:
    first = f"print({HOSTILE!r} + 'a\\u202eb \\x1b[31m')\n"
    job_id = submit(service, service.held("followed", first=first), labels={"run": HOSTILE_LABEL})
    open_with_key(browser, service, f"#job={job_id}")
    browser.until(f"{text('#log')}.includes('begun')")
    assert "(live)" in browser.run(text("#log-state"))
    assert "let go" not in browser.run(text("#log"))
    service.open_gate("followed")
    browser.until(f"{text('#log-state')} === '(complete)'")
    log = browser.run(text("#log"))
    assert HOSTILE in log
    assert "a\u27e8U+202E\u27e9b \u27e8U+001B\u27e9[31m" in log
    assert log.count("begun") == log.count("let go") == 1
    facts = browser.run(text("#facts"))
    assert f"run={HOSTILE_LABEL}" in facts
    assert "submission_missing" in facts
    browser.until(f"rows.get({job_id!r})?.textContent.includes('submission_missing')")
    assert browser.run("[document.images.length, document.scripts.length, window.hacked ?? null]") == [0, 1, None]
    assert browser.complaints() == []


def test_jobs_are_filtered_by_state_label_and_owner(browser: Browser, service: Service) -> None:
    made = {
        (run, key): submit(service, f"print({run!r})", key, labels={"run": run})
        for run, key in (("one", "s3cret"), ("two", "s3cret"), ("one", "other"))
    }
    for job_id in made.values():
        ended(service, job_id)
    shown = "[...document.querySelectorAll('#jobs tr')].map(row => row.dataset.job)"
    open_with_key(browser, service)
    browser.until(f"{shown}.length >= 3")
    browser.run("byId('filter-label').focus()")
    browser.write("run=one")
    browser.press("Enter")
    both = sorted([made["one", "s3cret"], made["one", "other"]])
    browser.until(f"JSON.stringify({shown}.sort()) === {json.dumps(json.dumps(both, separators=(',', ':')))}")
    browser.click("#filter-mine")
    browser.click("#filter button")
    browser.until(f"{shown}.join() === {made['one', 's3cret']!r}")
    browser.run("byId('filter-state').value = 'cancelled'")
    browser.click("#filter button")
    browser.until("!byId('no-jobs').hidden")
    browser.run("byId('filter-label').value = 'one'")
    browser.click("#filter button")
    browser.until(f"{text('#filter-trouble')}.includes('KEY=VALUE')")
    assert browser.complaints() == []


def test_a_click_opens_a_job_and_its_files_and_escape_closes_it(browser: Browser, service: Service) -> None:
    job_id = submit(service, "open('submission.csv', 'w').write('id,target\\n')\nprint('done')")
    ended(service, job_id)
    open_with_key(browser, service)
    browser.until(f"rows.has({job_id!r})")
    browser.click(f"tr[data-job='{job_id}'] button")
    browser.until("!byId('files-part').hidden")
    assert browser.run("location.hash") == f"#job={job_id}"
    assert "submission.csv, 10 bytes" in browser.run(text("#files"))
    assert browser.run(f"rows.get({job_id!r}).className") == "chosen"
    browser.press("Escape")
    assert browser.run("[byId('detail').hidden, location.hash]") == [True, ""]
    assert browser.run("document.activeElement.closest('tr').dataset.job") == job_id
    open_with_key(browser, service, f"#job={job_id}", key="other")
    browser.until(f"{text('#log-state')} === '(complete)'")
    assert browser.run("byId('files-part').hidden")


def test_a_second_click_cancels_a_running_job(browser: Browser, service: Service) -> None:
    job_id = submit(service, service.held("never"))
    open_with_key(browser, service, f"#job={job_id}")
    browser.until("!byId('cancel').hidden")
    browser.click("#cancel")
    assert "Really" in browser.run(text("#cancel"))
    browser.click("#cancel")
    browser.until(f"{text('#facts')}.includes('cancelled')")
    assert ended(service, job_id)["status"] == "cancelled"
    assert browser.run("byId('cancel').hidden")


def test_an_unknown_job_is_said_to_be_unknown(browser: Browser, service: Service) -> None:
    open_with_key(browser, service, "#job=nothing")
    browser.until(f"{text('#detail-trouble')} === 'no such job'")


def test_without_keys_no_key_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        browser.open(service.url + "/")
        browser.until("document.querySelectorAll('#workers li').length === 2")
        assert browser.run("[byId('ask').open, byId('forget').hidden]") == [False, True]
        job_id = submit(service, service.held(), key="")
        browser.run(f"location.hash = 'job={job_id}'")
        browser.until(f"{text('#log')}.includes('begun')")
        service.process.kill()
        service.process.wait()
        browser.until(f"{text('#trouble')}.includes('does not answer')")
        browser.until(f"{text('#detail-trouble')}.includes('connection was lost')")


def test_the_page_may_load_nothing_from_elsewhere(service: Service) -> None:
    with httpx.Client(base_url=service.url) as client:
        page = client.get("/")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert sorted(links) == ["data:,", "page.css", "page.js"]
        for link in links[1:]:
            assert client.get(f"/{link}").headers["Content-Security-Policy"] == policy
    assert not re.search(r"<script>|style=|\son\w+=", page.text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", (WEB / "page.js").read_text())


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window(browser: Browser, service: Service, scheme: str, width: int) -> None:
    job_id = submit(service, "print('x' * 500)\nraise ValueError('no')", labels={"run": "r" * 60})
    ended(service, job_id)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=width < 500
    )
    open_with_key(browser, service, f"#job={job_id}")
    browser.open(f"{service.url}/#job={job_id}", width=width)
    browser.until(f"{text('#log-state')} === '(complete)'")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: str) -> None:
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", (WEB / "page.css").read_text(), re.DOTALL)
    )
    colours = light if scheme == "light" else light | dark
    for name in ("ink", "quiet", "link", "good", "bad", "busy"):
        for ground in ("paper", "surface", "chosen"):
            assert contrast(colours[name], colours[ground]) >= 4.5, f"{name} on {ground}"


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminances, as WCAG defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
