// Every page: tables that sort, and light or dark by choice. Nothing is loaded, nothing is kept.
"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
      root.dataset.theme = next;
      button.textContent = "Colours: " + next;
      document.dispatchEvent(new Event("themechange"));
    });
  }

  const figure = (text) => {
    const found = text.replace(/[,\u00a0]/g, "").match(/-?\d+(\.\d+)?/);
    return found ? parseFloat(found[0]) : null;
  };
  const before = (one, other) => {
    const [a, b] = [figure(one), figure(other)];
    if (a !== null && b !== null && a !== b) return a - b;
    if ((a === null) !== (b === null)) return a === null ? 1 : -1;
    return one.localeCompare(other);
  };
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("thead th")];
    if (!table.tBodies.length || table.tBodies[0].rows.length < 3) continue;
    heads.forEach((head, column) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.className = "sorter";
      sorter.textContent = head.textContent;
      head.replaceChildren(sorter);
      sorter.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => before(a.cells[column].textContent, b.cells[column].textContent));
        if (down) rows.reverse();
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
