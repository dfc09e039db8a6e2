"""A browser for the pages of plugins."""

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    """Chromium; skips the test if there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium (apt install chromium)")
    from playwright.sync_api import expect, sync_playwright

    # what a page shows after its server has worked takes seconds on a busy machine
    expect.set_options(timeout=60_000)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
