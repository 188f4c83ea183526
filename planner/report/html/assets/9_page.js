// Draw the page.

answer();
if (LAYOUTS.length) {
  selectionBar();
  details();
  front();
  timeBars();
  memoryBars();
  timeline().catch((error) => {
    put("timeline-body", el("p", null, `This browser can't draw the timeline: ${error.message}`));
    throw error;
  });
} else {
  for (const id of ["choices", "time", "memory", "timeline"]) byId(id).hidden = true;
}
curve();
accuracy();
assumed();
exportsOf();
