// The report: its data are in the page.

load(JSON.parse(byId("report-data").textContent));
const Unpacked = unpacked(DATA.timelines);
timelineOf = async (index) => (await Unpacked)[index];
drawAll();
