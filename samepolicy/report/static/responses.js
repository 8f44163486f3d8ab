// The table of responses, sorted and filtered, and the list of outliers.
SP.responses = (() => {
  const rows = SP.data.rows;
  const columns = Object.fromEntries(Object.entries(rows.columns).map(([n, c]) => [n, SP.unpack(c)]));
  const labels = rows.labels;
  const codes = Object.fromEntries(Object.entries(labels).map(([n, l]) => [n, SP.unpack(l.code)]));
  const list = { row: SP.unpack(SP.data.outliers.row), at: SP.unpack(SP.data.outliers.position), value: SP.unpack(SP.data.outliers.value) };
  const name = SP.data.report.quantity === "prob_diff" ? "prob diff" : "d";
  const titles = { step: "step", sample: "sample", measured: "tokens", mean_abs: `mean abs ${name}`, max_abs: `max abs ${name}`, worst: "at", mean_d: "mean d", k3: "k3", ess: "ESS", prob_diff: "prob diff", trainer_log_ppl: "trainer log ppl", rollout_log_ppl: "rollout log ppl", entropy: "entropy", advantage: "advantage", reward: "reward", turns: "turns", version: "version" };
  let order = [];
  let sort = "max_abs";
  let down = true;
  const filters = {};
  let table = null;
  let outliers = null;
  let at = -1;

  const value = (column, row) => (column === "number" ? SP.numberOf(row) : column in codes ? labels[column].values[codes[column][row]] : columns[column][row]);

  function arrange() {
    const picked = [];
    for (let row = 0; row < rows.count; row++) {
      if (Object.entries(filters).every(([key, wanted]) => wanted === "" || String(value(key, row)) === wanted)) picked.push(row);
    }
    const sign = down ? -1 : 1;
    const key = sort in codes ? (row) => codes[sort][row] : (row) => value(sort, row);
    picked.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
      return sign * (x - y) || a - b;
    });
    order = picked;
    table.heading(sort, down);
    table.show();
    SP.byId("row-count").textContent = picked.length === rows.count ? SP.number(rows.count) : `${SP.number(picked.length)} / ${SP.number(rows.count)}`;
    SP.tell("order");
  }
  function sortBy(column) {
    if (sort === column) down = !down;
    else { sort = column; down = column !== "number" && !(column in codes); }
    SP.remember("sort", sort === "max_abs" && down ? "" : `${down ? "-" : ""}${sort}`);
    arrange();
  }
  function cell(i, column) {
    const row = order[i];
    if (column.name === "number") {
      const whole = SP.strip.holds(row);
      return SP.make("span", {}, whole ? SP.make("span", { class: whole === 2 ? "stored" : "stored part" }) : "", ` ${SP.numberOf(row)}`);
    }
    const found = value(column.name, row);
    return typeof found === "string" ? found : SP.number(found, 3);
  }
  function filterBox(key, title, values) {
    const select = SP.make("select", { "data-filter": key });
    select.append(SP.make("option", { value: "", "data-t": "all" }, SP.said("all")), ...values.map((v) => SP.make("option", { value: v }, v === "" ? "–" : v)));
    select.addEventListener("change", () => { filters[key] = select.value; SP.remember(key, select.value); arrange(); });
    if (values.includes(SP.address()[key])) { select.value = SP.address()[key]; filters[key] = select.value; SP.kept[key] = select.value; }
    SP.byId("filters").append(SP.make("label", {}, SP.word(title), select));
  }
  function boxes() {
    for (const [key, title] of [["finish_reason", "finish reason"], ["group", "prompt"]]) {
      if (labels[key] && labels[key].filter && labels[key].values.length > 1) filterBox(key, title, labels[key].values);
    }
    for (const [key, title] of [["step", "step"], ["turns", "turns"], ["version", "version"]]) {
      if (!columns[key]) continue;
      const found = [...new Set(Array.from(columns[key]).filter((x) => !Number.isNaN(x)))].sort((a, b) => a - b);
      if (found.length > 1 && found.length <= 2000) filterBox(key, title, found.map(String));
    }
  }

  function goTo(i, scroll = true) {
    if (!list.row.length) return;
    at = (i + list.row.length) % list.row.length;
    SP.choose(list.row[at], list.at[at], { scroll });
  }
  const nearest = (row, place) => { for (let i = 0; i < list.row.length; i++) if (list.row[i] === row && list.at[i] === place) return i; return -1; };

  function start() {
    const shown = [{ name: "number", title: "№", left: true }];
    for (const key of ["step", "measured", "mean_abs", "max_abs", "worst", "mean_d", "k3", "ess", "prob_diff", "trainer_log_ppl", "rollout_log_ppl", "entropy", "advantage", "reward", "turns", "version"]) if (columns[key]) shown.push({ name: key, title: titles[key] });
    for (const key of ["finish_reason", "group"]) if (labels[key]) shown.push({ name: key, title: key === "group" ? "prompt" : "finish reason", left: true });
    table = SP.table(SP.byId("responses"), { columns: shown, count: () => order.length, cell, sorted: sortBy, label: "responses", click: (i) => SP.choose(order[i], Number.isNaN(columns.worst ? columns.worst[order[i]] : NaN) ? 0 : columns.worst[order[i]]) });
    outliers = SP.table(SP.byId("outliers"), {
      columns: [{ name: "number", title: "№", left: true, sort: false }, { name: "token", title: "token", left: true, sort: false }, { name: "at", title: "at", sort: false }, { name: "value", title: name, sort: false }],
      count: () => list.row.length, label: "outliers", click: (i) => goTo(i, false),
      cell: (i, column) => ({ number: () => SP.numberOf(list.row[i]), token: () => SP.strip.shortText(list.row[i], list.at[i]), at: () => SP.number(list.at[i]), value: () => SP.number(list.value[i], 3) })[column.name](),
    });
    const asked = SP.address().sort;
    if (asked && (asked.replace(/^-/, "") in columns || asked.replace(/^-/, "") in codes || asked.endsWith("number"))) { down = asked.startsWith("-"); sort = asked.replace(/^-/, ""); SP.kept.sort = asked; }
    else if (!columns.max_abs) sort = "number";
    boxes();
    arrange();
    outliers.show();
    SP.on("token", (row, place) => {
      table.mark(order.indexOf(row));
      const found = nearest(row, place);
      if (found >= 0) at = found;
      outliers.mark(found);
    });
    SP.on("language", () => { table.show(); outliers.show(); });
  }
  return { start, next: () => goTo(at + 1), previous: () => goTo(at < 0 ? 0 : at - 1), worst: () => goTo(0), order: () => order, columns, value, list };
})();
