"""Draw the pictures of the dashboard in the docs: `python tools/screenshots.py [--project DIR] [--to DIR]`.

Needs Chromium on this machine, and a pipeline that has run; `make screenshots` runs the demo for it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
_WARM_S = 45  # until Spark runs and the curves have some batches
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine, without a screen."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    if path is None:
        sys.exit("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def pages(pipeline: str, update: str, dataset: str, topic: str) -> dict[str, str]:
    """The pages by the names of their pictures."""
    own = f"/p/{pipeline}"
    return {
        "pipelines": "/",
        "graph": f"{own}/",
        "dataset": f"{own}/dataset?name={dataset}",
        "update": f"{own}/update?id={update}",
        "updates": f"{own}/updates",
        "events": f"{own}/events",
        "topics": f"{own}/topics",
        "topic": f"{own}/topic?name={topic}",
        "proof": f"{own}/proof",
    }


@contextmanager
def running(project: Path) -> Iterator[None]:
    """Run the pipeline of the demo, with new records, while the block draws it."""
    command = [sys.executable, "-m", "headrace"]
    produce = [*command, "produce", "sales", "--sample", "--rate", "400"]
    with (project / "run.log").open("w") as log:
        started = [
            subprocess.Popen(one, cwd=project, stdout=log, stderr=log)
            for one in ([*command, "run", "--continuous"], produce)
        ]
        try:
            time.sleep(_WARM_S)
            yield
        finally:
            for one in started:
                one.send_signal(signal.SIGINT)
            for one in started:
                one.wait(60)
            subprocess.run([*command, "broker", "stop"], cwd=project, stdout=log, stderr=log, check=False)


def settle(page: Page) -> None:
    """Wait until a page has its data: the stream is open, and charts and graph are drawn."""
    page.wait_for_selector('[data-live-state="live"]')
    for host, drawn in (
        ("#graph", "#graph svg"),
        ("[data-charts]", ".u-wrap, .without"),
        (".gantt", ".gantt svg"),
    ):
        if page.query_selector(host):
            page.wait_for_selector(drawn)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", type=Path, default=ROOT / "headrace-demo")
    parser.add_argument("--to", type=Path, default=ROOT / "docs/pictures")
    parser.add_argument("--widths", default="1280")
    parser.add_argument("--schemes", default="light,dark")
    parser.add_argument("--dataset", default="default.silver")
    parser.add_argument("--topic", default="sales")
    parser.add_argument("--only", default="")
    parser.add_argument("--dark", default="graph,dataset", help="the pages that are also drawn in dark")
    parser.add_argument("--live", action="store_true", help="run the pipeline of the demo meanwhile")
    parser.add_argument("--full", action="store_true", help="the whole page, and not one screen of it")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    dashboard = Dashboard(load_project(given.project), Address(port=0))
    run = running(given.project) if given.live else nullcontext()
    with run, serving(dashboard), chromium() as browser:
        for scheme in given.schemes.split(","):
            for width in map(int, given.widths.split(",")):
                context = browser.new_context(
                    viewport={"width": width, "height": 820 if width < 2000 else 1200},
                    color_scheme=scheme,
                    timezone_id="Europe/Berlin",
                )
                page = context.new_page()
                page.goto(dashboard.link)
                page.wait_for_selector(".card .dot")
                html = page.content()
                pipeline = re.search(r'href="/p/([^/"]+)/"', html)
                updates = re.findall(r"update\?id=([^\"&]+)", html)
                assert pipeline is not None and updates
                for name, path in pages(pipeline[1], updates[0], given.dataset, given.topic).items():
                    if name not in (given.only or name).split(","):
                        continue
                    if scheme == "dark" and name not in given.dark.split(","):
                        continue
                    page.goto(f"http://127.0.0.1:{dashboard.port}{path}")
                    settle(page)
                    tail = (
                        ""
                        if (width, scheme) == (1280, "light")
                        else f"-{scheme}"
                        if width == 1280
                        else f"-{width}-{scheme}"
                    )
                    page.screenshot(path=given.to / f"{name}{tail}.png", full_page=given.full)
                context.close()


if __name__ == "__main__":
    main()
