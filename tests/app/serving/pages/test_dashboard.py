"""The dashboard in a real browser."""

import re
import shutil
import subprocess
import time

import pytest

from tests.support.waiting import wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def dump(url, profile):
    """Return the page's document after a few seconds of the browser's virtual time."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=4000",
        "--dump-dom",
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the dashboard is not tested")
def test_the_dashboard_shows_what_the_status_says(world, tmp_path):
    world.log.start_epoch()
    number = world.log.publish(record_ms=[1])
    world.log.write_status(
        name="films",
        updated_ms=time.time_ns() // 1_000_000 + 120_000,  # the browser may be slow on a busy machine
        trainer="catching_up",
        reason="<b>5 million</b> records behind",
        epoch=1,
        samples_trained=1_234_567,
        samples_per_second=50.0,
        positions={"clicks/0": {"learned": 10, "committed": 5, "end": 999_333, "lag": 999_323}},
        scores={
            "whole": {"auc": 0.7, "logloss": 0.4, "calibration": 1.0, "label_rate": 0.2},
            "window": {
                "auc": 0.7321,
                "normalized_entropy": 0.812,
                "curve": [
                    {"predicted": 0.1, "seen": 0.12, "weight": 50},
                    {"predicted": 0.4, "seen": 0.377, "weight": 50},
                    {"predicted": 0.99, "seen": 1.0, "weight": 50},
                ],
            },
            "ranking": {
                "request": {
                    "whole": {"groups": 543_210, "gauc": {"value": 0.6123, "standard_error": 0.0012}},
                    "window": {"groups": 20_000, "ndcg": {"7": {"value": 0.4567}}},
                    "num_ended_early": 333,
                },
                "group": {"share": 0.25},
            },
            "policies": {"<u>old": {"whole": {"requests": 7_654, "ips": 0.0123, "ips_error": 0.0045}}},
            "segments": {"country": [{"value": "<i>DE", "window": {"auc": 0.6543, "samples": 1234}}]},
            "drift": {
                "level": "large",
                "most": "age",
                "reference_until": 20_000,
                "recent_until": 30_000,
                "labels": {
                    "bought": {
                        "label_rate": {"reference": 0.02, "recent": 0.07, "psi": 0.061, "level": "large"},
                        "score": {"psi": 0.014, "level": "none"},
                    }
                },
                "features": [{"name": "age", "psi": 0.345, "level": "large", "missing": 0.25}],
            },
        },
        dead_letters={"bad_json": 77, "late": 41},
        join={
            "watermark_ms": 1,
            "impressions": 31_234,
            "events": 8_765,
            "duplicates": 17,
            "slowest": "shown+600000",
            "labels": {"<u>order": {"unmatched": 23, "on_time_share": 0.876}},
        },
        table={"rows": {"device": 10, "disk": 4}},
    )
    (world.log.path / "simulator.json").write_text('{"best_auc": 0.8123}')
    client = world.serve()
    world.served(client, number)
    expected = (
        "films",
        "catching up",
        "1,234,567",
        "1.1 ",
        "0.7321",
        "best possible 0.8123",
        "bad_json",
        "77",
        "999,323",
        "normalized entropy 0.812",
        "predicted 40 %, seen 37.7 %",
        "predicted 99 %, seen 100 %",
        "0.6543",
        "543,210",
        "± 0.0012",
        "NDCG@7",
        "0.4567",
        "333 requests ended early",
        "7,654",
        "1.23 %",
        "± 0.45 %",
        "Of the users 25 % are measured",
        "0.345",
        "rate of bought",
        "2 % → 7 %",
        "missing 0 % → 25 %",
        "waits for shown, windows of 10 min",
        "31,234",
        "8,765",
        "87.6 %",
    )
    body = text = ""

    def are_all_shown():
        nonlocal body, text
        page = dump(str(client.base_url), tmp_path / "profile")
        body = page[page.index("<body") :]
        text = re.sub(r"<script.*?</script>|<[^>]+>", " ", body, flags=re.S)
        return all(shown in text for shown in expected)

    wait_until(are_all_shown, lambda: text)  # on a busy machine a page may be dumped before it is complete
    assert "&lt;b&gt;5 million" in body
    assert "&lt;i&gt;DE" in body
    assert "&lt;u&gt;order" in body
    assert 'class="lost"' not in body
    assert body.count("<svg") >= 7


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the API page is not tested")
def test_the_docs_page_lists_the_routes(world, tmp_path):
    client = world.serve()
    page = dump(f"{str(client.base_url).rstrip('/')}/docs", tmp_path / "profile")
    assert "<code>/v1/predict</code>" in page
    assert "Score instances" in page
