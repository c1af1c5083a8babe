// Tables sort by the heading that is pressed; once more turns them round.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    head.firstElementChild.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[place];
        return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
      };
      const order = (a, b) => {
        const [left, right] = [key(a), key(b)];
        const numbers = typeof left === "number" && typeof right === "number";
        // Rows without a number stand last, whichever way.
        if (!numbers && typeof left !== typeof right) return typeof left === "number" ? -1 : 1;
        const sign = numbers ? left - right : left.localeCompare(right);
        return falling ? -sign : sign;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
