"""A step whose links are shared, as tables and records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.base.units import format_seconds
from planner.report.plain_table import View, plain_table, stacked

if TYPE_CHECKING:
    from planner.step.timeline.shared_links import SharedStep

MOST_LINKS = 8


def links_record(x: SharedStep) -> dict[str, Any]:
    """The step, its links, those first that hold flows up for longest, and its traffic by kind."""
    used = x.ran.carried_bytes / x.fabric.capacity_bytes_per_s / x.step_time_s
    columns = (x.fabric.alike, used, x.ran.full_s, x.ran.held_s)
    links = [
        {"link": link, "alike": alike, "used": share, "full_s": full_s, "held_s": held_s}
        for link, alike, share, full_s, held_s in zip(x.fabric.names, *(c.tolist() for c in columns), strict=True)
        if share > 0.0
    ]
    return {
        "step_time_s": x.step_time_s,
        "alone_s": x.plain.step_time_s,
        "links": sorted(links, key=lambda of: (-round(of["held_s"], 6), -round(of["full_s"], 6))),
        "traffic": [
            {"kind": kind, "alone_s": alone_s, "shared_s": shared_s}
            for kind, (alone_s, shared_s) in x.traffic_s.items()
        ],
    }


def links_view(x: SharedStep, closed_form_s: float | None) -> View:
    """The same for a person."""
    r = links_record(x)
    beside = "" if closed_form_s is None else f" ({x.step_time_s / closed_form_s - 1.0:+.2%} to the closed form)"
    lines = [
        f"links shared: {format_seconds(x.step_time_s)}{beside}; if nothing met on them {format_seconds(r['alone_s'])}",
    ]
    if not r["links"]:
        return "\n".join([*lines, "nothing goes between nodes"])
    links = plain_table("link", "alike", "used", "full s", "held up s", numbers=(1, 2, 3, 4))
    for of in r["links"][:MOST_LINKS]:
        seconds = (f"{of[key]:.4g}" for key in ("full_s", "held_s"))
        links.add_row(of["link"], str(of["alike"]), f"{of['used']:.1%}", *seconds)
    traffic = plain_table("traffic", "alone s", "shared s", "held up", numbers=(1, 2, 3))
    for of in r["traffic"]:
        held = of["shared_s"] / of["alone_s"] - 1.0
        traffic.add_row(of["kind"], f"{of['alone_s']:.4g}", f"{of['shared_s']:.4g}", f"{held:+.1%}")
    if len(r["links"]) > MOST_LINKS:
        lines.append(f"the {MOST_LINKS} links that held flows up for longest, of {len(r['links'])} that differ")
    notes = (
        "used: of what a link carries in a step, by this job; full: with other jobs' flows\n"
        "held up: a flow of this job would send more; traffic: of the rank that waits longest"
    )
    return stacked("\n".join(lines), "", links, "", traffic, "", notes)
