// A table that holds any number of rows and puts only those in sight into the page.
SP.table = (box, { columns, count, cell, click, sorted, label }) => {
  const HEIGHT = 29;
  const body = SP.make("tbody");
  const head = SP.make("tr");
  const table = SP.make("table", { "aria-rowcount": count() + 1, "aria-label": label });
  table.append(SP.make("thead", {}, head), body);
  box.replaceChildren(table);
  let first = -1;
  let now = -1;

  for (const column of columns) {
    const th = SP.make("th", { scope: "col", class: column.left ? "left" : null });
    th.append(column.sort === false ? SP.word(column.title) : SP.make("button", { type: "button", onclick: () => sorted(column.name) }, SP.word(column.title)));
    th.dataset.name = column.name;
    head.append(th);
  }
  const pad = (rows) => {
    const td = SP.make("td", { colspan: columns.length });
    td.style.height = `${rows * HEIGHT}px`;
    return SP.make("tr", { class: "pad", "aria-hidden": "true" }, td);
  };
  function line(i) {
    const tr = SP.make("tr", { "aria-rowindex": i + 2, class: i === now ? "now" : null, onclick: () => click(i) });
    for (const column of columns) {
      const found = cell(i, column);
      tr.append(SP.make("td", { class: column.left ? "left" : null }, found instanceof Node ? found : String(found)));
    }
    return tr;
  }
  function show(force) {
    const rows = count();
    const from = Math.max(0, Math.min(Math.floor(box.scrollTop / HEIGHT) - 8, Math.max(0, rows - 1)));
    if (from === first && !force) return;
    first = from;
    const to = Math.min(rows, from + Math.ceil((box.clientHeight || 330) / HEIGHT) + 16);
    const made = [pad(from)];
    for (let i = from; i < to; i++) made.push(line(i));
    made.push(pad(rows - to));
    body.replaceChildren(...made);
    table.setAttribute("aria-rowcount", rows + 1);
  }
  box.addEventListener("scroll", () => requestAnimationFrame(() => show(false)));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !count()) return;
    event.preventDefault();
    click(Math.max(0, Math.min(count() - 1, now + step)));
  });
  return {
    show: () => show(true),
    mark(i) {
      now = i;
      if (i >= 0) {
        const top = i * HEIGHT;
        const room = box.clientHeight - 34;
        if (top < box.scrollTop || top + HEIGHT > box.scrollTop + room) box.scrollTop = Math.max(0, top - room / 2);
      }
      show(true);
    },
    heading(name, down) {
      for (const th of head.children) {
        if (th.dataset.name === name) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      }
    },
  };
};
