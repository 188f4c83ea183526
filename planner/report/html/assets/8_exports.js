// The plan in other tools' words, to copy or to save.

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function copy(text, button, pre) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    getSelection().selectAllChildren(pre);
  }
  const was = button.textContent;
  button.textContent = done ? "Copied" : "Selected: press Ctrl + C";
  setTimeout(() => {
    button.textContent = was;
  }, 1800);
}

function exportPanel(x, i) {
  const pre = el("pre", { tabindex: 0, "aria-label": x.file }, x.text);
  return el(
    "div.file",
    { role: "tabpanel", id: `export-${i}`, "aria-labelledby": `export-tab-${i}`, hidden: i > 0 },
    !x.text
      ? null
      : el(
          "div.buttons",
          button("Copy", (e) => copy(x.text, e.currentTarget, pre)),
          button(`Save ${x.file}`, () => save(x.file, x.text)),
        ),
    x.notes.length
      ? el(
          "ul.plain.note",
          x.notes.map((n) => el("li", n)),
        )
      : null,
    x.text ? pre : null,
  );
}

function exportsOf() {
  const all = DATA.exports;
  byId("exports").hidden = !all.length;
  const panels = all.map(exportPanel);
  const tabs = all.map((x, i) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `export-tab-${i}`,
        "aria-controls": `export-${i}`,
        "aria-selected": String(i === 0),
        tabindex: i === 0 ? 0 : -1,
      },
      x.name,
    ),
  );
  const open = (i, focus) => {
    tabs.forEach((tab, j) => {
      tab.setAttribute("aria-selected", String(i === j));
      tab.tabIndex = i === j ? 0 : -1;
    });
    panels.forEach((panel, j) => {
      panel.hidden = i !== j;
    });
    if (focus) tabs[i].focus();
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(i, false));
    tab.addEventListener("keydown", (e) => {
      const to = {
        ArrowRight: (i + 1) % tabs.length,
        ArrowLeft: (i + tabs.length - 1) % tabs.length,
        Home: 0,
        End: tabs.length - 1,
      }[e.key];
      if (to !== undefined) {
        e.preventDefault();
        open(to, true);
      }
    });
  });
  put(
    "exports-body",
    el("p.lead", "The recommended plan for other tools."),
    el("div.buttons", { role: "tablist", "aria-label": "Formats" }, tabs),
    panels,
  );
}
