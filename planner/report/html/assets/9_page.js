// Draw the page.

const DRAWN = ["choices", "time", "memory", "timeline"];
function drawAll() {
  for (const id of DRAWN) byId(id).hidden = !LAYOUTS.length;
  answer();
  selectionBar();
  details();
  if (LAYOUTS.length) {
    front();
    timeBars();
    memoryBars();
    timeline();
  }
  answers();
  curve();
  accuracy();
  assumed();
  exportsOf();
}
