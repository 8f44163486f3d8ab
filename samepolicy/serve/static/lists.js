// The two tables: alarms with changes of level, and steps; the number leads to the report of the step.
SP.lists = (() => {
  const HEIGHT = 29;
  const link = (step) => SP.make("a", { href: `/step/${step}`, tabindex: "-1" }, step < 0 ? SP.said("no step") : String(step));

  // A table whose rows come and go while it is read: it stays where it was scrolled to, and keeps the chosen step.
  function table(box, { columns, rows, cell, sorted, label }) {
    let found = [];
    let chosen = null;
    const made = SP.table(box, { columns, count: () => found.length, label, sorted, cell: (i, column) => cell(found[i], column), click: (i) => { chosen = found[i].key; made.mark(i); } });
    box.addEventListener("keydown", (event) => {
      const at = found.findIndex((row) => row.key === chosen);
      if (event.key === "Enter" && at >= 0) SP.open(found[at].step);
    });
    return {
      heading: made.heading,
      show() {
        const top = found[Math.floor(box.scrollTop / HEIGHT)];
        const within = box.scrollTop % HEIGHT;
        found = rows();
        if (top && box.scrollTop > 0) {
          const at = found.findIndex((row) => row.key === top.key);
          made.show();
          if (at >= 0) box.scrollTop = at * HEIGHT + within;
        }
        const at = found.findIndex((row) => row.key === chosen);
        const seen = at >= 0 && at * HEIGHT >= box.scrollTop && (at + 1) * HEIGHT <= box.scrollTop + box.clientHeight - 34;
        if (seen) made.mark(at);
        else { chosen = null; made.mark(-1); }
      },
    };
  }

  function marks() {
    const kind = SP.byId("kind");
    const columns = [{ name: "step", title: "step", sort: false }, { name: "kind", title: "kind", sort: false, left: true }, { name: "series", title: "metric", sort: false, left: true }, { name: "what", title: "what happened", sort: false, left: true }];
    const view = table(SP.byId("marks"), {
      columns, label: SP.said("alarms and changes of level"), sorted() {},
      rows: () => SP.stream.held.marks.listed.filter((m) => !kind.value || m[0] === kind.value).map((m) => ({ key: m.slice(0, 3).join(), step: m[1], mark: m })).reverse(),
      cell: ({ mark }, { name }) => {
        if (name === "step") return link(mark[1]);
        if (name === "kind") return SP.said(mark[0] === "alarm" ? "▲ alarm" : "change of level");
        return name === "series" ? SP.said(SP.lines.named(mark[2])) : SP.make("span", { title: mark[3] }, mark[3]);
      },
    });
    kind.addEventListener("change", view.show);
    return () => {
      const { counts, listed } = SP.stream.held.marks;
      SP.byId("alarm-count").textContent = SP.said("alarms that went on: {a} · changes of level: {c}", { a: SP.number(counts.alarm || 0), c: SP.number(counts.change || 0) })
        + (listed.length < (counts.alarm || 0) + (counts.change || 0) ? ` · ${SP.said("the latest {n} are listed", { n: SP.number(listed.length) })}` : "");
      view.show();
    };
  }

  function rows() {
    const held = SP.stream.held;
    const only = SP.byId("only");
    let [by, down] = ["step", true];
    const plain = { responses: "responses", tokens: "tokens", outside: "outside", parts: "parts", damaged: "damaged" };
    const columns = [{ name: "step", title: "step" }, { name: "responses", title: "responses" }, { name: "tokens", title: "tokens" },
      ...SP.stream.base.map((name) => ({ name, title: SP.lines.named(name) })),
      { name: "outside", title: "outside" }, { name: "parts", title: "parts" }, { name: "damaged", title: "damaged" }];
    const value = (i, name) => (name === "step" ? held.steps[i] : plain[name] ? held[name][i] : held.values[name][i]);
    const view = table(SP.byId("rows"), {
      columns, label: SP.said("steps"),
      sorted(name) {
        [by, down] = name === by ? [by, !down] : [name, true];
        view.heading(by, down);
        view.show();
      },
      rows() {
        const found = held.steps.map((step, i) => ({ key: step, step, i })).filter(({ i }) => !only.checked || held.outside[i] || held.damaged[i]);
        if (by !== "step") found.sort((a, b) => { const [x, y] = [value(a.i, by), value(b.i, by)]; return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(y) - Number.isNaN(x) || a.step - b.step : x - y || a.step - b.step; });
        return down ? found.reverse() : found;
      },
      cell: ({ i, step }, { name }) => (name === "step" ? link(step) : held.responses[i] || name === "parts" || name === "damaged" ? SP.number(value(i, name), 4) : "–"),
    });
    view.heading(by, down);
    only.addEventListener("change", view.show);
    return () => {
      SP.byId("step-count").textContent = SP.said("the number leads to the report of the step");
      view.show();
    };
  }

  function damaged() {
    const { state } = SP.stream.held;
    const found = Object.entries(state.bad || {});
    SP.byId("damaged").hidden = !state.damaged;
    SP.byId("damaged-count").textContent = state.damaged > found.length ? SP.said("{n}, of which {k} are listed", { n: SP.number(state.damaged), k: SP.number(found.length) }) : String(state.damaged || "");
    SP.byId("bad").replaceChildren(...found.map(([name, why]) => SP.make("tr", {}, SP.make("th", { scope: "row" }, name), SP.make("td", {}, why))));
  }

  function start() {
    const all = [marks(), rows(), damaged];
    const show = () => all.forEach((one) => one());
    SP.on("steps", show);
    SP.on("language", show);
  }
  return { start };
})();
