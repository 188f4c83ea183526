"""Reports to look at: a small search with its simulations, and a page in a real browser where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from planner.api.recommended import search_plan
from planner.api.reports import gather_report
from planner.question import load_setup
from planner.report.html.page import html_page
from planner.report.plan_report import PlanReport
from planner.training_time.goal import goal

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>$title ${x} \u2028'\"&amp;"


def small_report(*, curve: bool = False, **restrictions: Any) -> PlanReport:
    plan = search_plan(
        load_setup("llama-13b", "dgx-a100-80gb"), gpus=16, global_batch=128, precision="bf16", attention="flash2",
        **restrictions,
    )  # fmt: skip
    aim = goal(plan.setup.model, tokens=1e11) if curve else None
    made = gather_report(plan, command="planner recommend llama-13b", aim=aim)
    exports = [
        {"name": "Plan", "file": "plan.json", "text": '{"dp": 1}\n', "notes": []},
        {"name": "Other", "file": "other.sh", "text": "run me\n", "notes": ["not all is said"]},
        {"name": "Third", "file": "third.sh", "text": "", "notes": ["it has no pipeline"]},
    ]
    return replace(made, version="0", title="llama-13b on 16 GPUs", exports=exports)


@pytest.fixture(scope="session")
def report() -> PlanReport:
    return small_report(curve=True, pp=[4], tp=[2], schedule=["1f1b", "zb-v", "dualpipe"])


@pytest.fixture(scope="session")
def hostile(report) -> PlanReport:
    """Names that would be markup or script, wherever a user's file can put one."""
    model, cluster, framework = report.setup.model, report.setup.cluster, report.setup.framework
    setup = replace(
        report.setup, model=replace(model, name=HOSTILE), framework=replace(framework, name=HOSTILE),
        cluster=replace(
            cluster, name=HOSTILE, network=replace(cluster.network, name=HOSTILE),
            accelerator=replace(cluster.accelerator, name=HOSTILE),
        ),
    )  # fmt: skip
    exports = [{"name": HOSTILE, "file": HOSTILE, "text": HOSTILE, "notes": [HOSTILE]}]
    return replace(report, title=HOSTILE, command=HOSTILE, setup=setup, exports=exports)


@pytest.fixture(scope="session")
def nothing_fits() -> PlanReport:
    return small_report(tp=[1], pp=[1], zero=[0])


@pytest.fixture(scope="session")
def asked_why() -> PlanReport:
    """A report that was asked why the best is not otherwise."""
    plan = search_plan(load_setup("llama-13b", "dgx-a100-80gb"), gpus=16, global_batch=128)
    answers = [plan.why("tp=4,recompute=full"), plan.why("tp=3")]
    return gather_report(plan, command="planner recommend", aim=None, answers=answers)


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Open a report with the network off; any message, error, dialog or request but the file's fails the test."""
    faults: list[str] = []
    contexts = []

    def show(made: PlanReport, width: int = 1200, **settings: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(html_page(made), encoding="utf-8")
        context = browser.new_context(offline=True, viewport={"width": width, "height": 850}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: faults.append(request.url) if request.url != path.as_uri() and
                not request.url.startswith("blob:") else None)  # fmt: skip
        page.goto(path.as_uri())
        page.wait_for_selector("#timeline-body canvas, #timeline-body p, #timeline[hidden]", state="attached")
        return page

    yield show
    for context in contexts:
        context.close()
    assert faults == []
