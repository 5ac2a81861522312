"use strict";
// A click on a heading sorts: numbers largest first, text by the alphabet, then the other way
// round, then as it was. What is not known stays last. Without this script the tables just stand.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], was = [...body.rows];
  for (const head of table.querySelectorAll("th[data-sortable]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const column = head.cellIndex, cells = was.map((row) => row.cells[column]);
      const numbers = cells.some((cell) => cell.dataset.sort !== undefined);
      const turns = numbers ? ["descending", "ascending"] : ["ascending", "descending"];
      const turn = turns[turns.indexOf(head.getAttribute("aria-sort")) + 1];
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      if (turn) head.setAttribute("aria-sort", turn);
      table.classList.toggle("sorted", Boolean(turn));
      const key = (row) => {
        const cell = row.cells[column];
        return numbers ? Number(cell.dataset.sort ?? NaN) : cell.textContent;
      };
      const known = (row) => (numbers ? !Number.isNaN(key(row)) : key(row) !== "–");
      const sign = turn === "descending" ? -1 : 1;
      const compare = (a, b) => {
        if (known(a) !== known(b)) return known(a) ? -1 : 1;
        if (!known(a)) return 0;
        return sign * (numbers ? key(a) - key(b) : key(a).localeCompare(key(b), "en"));
      };
      body.append(...(turn ? [...was].sort(compare) : was));
    });
  }
}
// A field above a long table shows the rows that hold what is typed.
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length <= 12) continue;
  const field = document.createElement("input");
  field.type = "search";
  field.className = "rows";
  field.placeholder = `Search ${rows.length} rows`;
  field.setAttribute("aria-label", `Search the table: ${table.caption.textContent}`);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    rows.forEach((row, i) => { row.hidden = !texts[i].includes(wanted); });
  });
  table.closest(".scroll").before(field);
}
// What is wider than its place says so, also when the page is turned.
const mark = () => document.querySelectorAll(".scroll").forEach((box) => box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1));
addEventListener("resize", mark);
document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", mark));
mark();
