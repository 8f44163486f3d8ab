// Metrics over the steps: thinned to what a screen can show, never without the highest and the lowest.
SP.lines = (() => {
  const POINTS = 400; // bins across a chart, with two points each
  const names = {
    "logp_diff.mean": "mean abs d", "prob_diff.mean": "probability difference", "k3.mean": "mean k3", "ess_token.ess": "effective share of tokens",
    "ratio.mean": "mean ratio", "ratio_far.share": "ratios beyond a factor of 2", "ratio_above.share": "ratios above 2", "sign_skew.mean": "advantage-weighted skew",
  };
  const named = (series) => names[series] || series.replace(".", " ");
  const boxes = new Map();
  let shown = [];
  let last = 1000;
  let zoomed = null;
  let logarithmic = false;

  function range() {
    const { steps } = SP.stream.held;
    const first = steps[0] === -1 ? 1 : 0;
    if (zoomed) return [Math.max(first, SP.stream.place(Math.ceil(zoomed[0]))), SP.stream.place(Math.floor(zoomed[1]) + 1)];
    return [last ? Math.max(first, steps.length - last) : first, steps.length];
  }
  // Where a bin holds more than two values, its lowest and its highest, in the order in which they come.
  function thinned(values, from, to) {
    const kept = [];
    const width = Math.max(1, (to - from) / POINTS);
    for (let start = from; start < to; start += width) {
      let [low, high] = [-1, -1];
      for (let i = Math.floor(start); i < Math.min(to, Math.floor(start + width)); i++) {
        if (!Number.isFinite(values[i])) continue;
        if (low < 0 || values[i] < values[low]) low = i;
        if (high < 0 || values[i] > values[high]) high = i;
      }
      if (low >= 0) kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
    }
    return kept;
  }

  function figure(series) {
    const { steps, values, marks, ranges } = SP.stream.held;
    const [from, to] = range();
    const column = values[series] || [];
    const kept = thinned(column, from, to);
    const ends = to > from ? [steps[from], steps[to - 1]] : [0, 1];
    const inside = marks.listed.filter((m) => m[2] === series && m[1] >= ends[0] && m[1] <= ends[1]);
    const alarms = inside.filter((m) => m[0] === "alarm").map((m) => [m[1], column[SP.stream.place(m[1])], m[3]]).filter((m) => Number.isFinite(m[1]));
    const lines = inside.filter((m) => m[0] === "change").map((m) => ({ type: "line", x0: m[1], x1: m[1], yref: "paper", y0: 0, y1: 1, line: { color: SP.css("--mark"), width: 1.5, dash: "dash" } }));
    const sizes = kept.map((i) => column[i]);
    const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
    const near = (end) => end >= least - 2 * (most - least) && end <= most + 2 * (most - least); // else the line would lie flat
    for (const usual of ranges[series] || []) {
      for (const end of [usual.low, usual.high]) {
        if (end !== null && end !== 0 && near(end)) lines.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: end, y1: end, line: { color: SP.css("--good"), width: 1, dash: "dot" } });
      }
    }
    const log = logarithmic && kept.length > 0 && kept.every((i) => column[i] > 0);
    const room = Math.max(1, (ends[1] - ends[0]) * 0.02);
    return {
      data: [
        { type: "scatter", mode: kept.length > 60 ? "lines" : "lines+markers", x: kept.map((i) => steps[i]), y: kept.map((i) => column[i]), line: { color: SP.css("--high"), width: 1.6 }, marker: { size: 5 }, hovertemplate: "%{x}: %{y:.5g}<extra></extra>", showlegend: false },
        { type: "scatter", mode: "markers", x: alarms.map((m) => m[0]), y: alarms.map((m) => m[1]), hovertemplate: "▲ %{x}: %{y:.5g}<extra></extra>", showlegend: false, marker: { symbol: "triangle-up", size: 11, color: SP.css("--bad"), line: { color: SP.css("--panel"), width: 1 } } },
      ],
      layout: {
        shapes: lines, hovermode: "closest", dragmode: "zoom", margin: { l: 52, r: 14, t: 10, b: 40 },
        xaxis: { title: { text: "step" }, range: [ends[0] - room, ends[1] + room], tickformat: "d", visible: steps.length > 0 },
        yaxis: { fixedrange: true, type: log ? "log" : "linear", exponentformat: "power", nticks: 6, visible: steps.length > 0 },
      },
    };
  }

  function listen(chart) {
    if (chart.dataset.heard || !chart.on) return;
    chart.dataset.heard = "1";
    chart.on("plotly_click", (event) => SP.open(event.points[0].x));
    chart.on("plotly_relayout", (event) => {
      const [a, b] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (a !== undefined && b !== undefined) look([a, b], last);
      else if (event["xaxis.autorange"]) look(null, last);
    });
  }
  function box(series) {
    const chart = SP.make("div", { class: "chart line", "data-series": series });
    const value = SP.make("b");
    const off = SP.make("button", { type: "button", class: "off", onclick: () => choose(shown.filter((s) => s !== series)) }, "×");
    const whole = SP.make("figure", { "data-figure": series }, SP.make("figcaption", {}, SP.word(named(series)), " ", SP.make("span", { class: "value" }, value), off), chart);
    const draw = () => SP.charts.place(chart, () => { setTimeout(() => listen(chart), 0); return figure(series); });
    boxes.set(series, { whole, chart, value, off, draw });
    draw();
  }

  function show() {
    const { steps, values, names: known } = SP.stream.held;
    const all = SP.byId("lines");
    for (const series of shown) {
      if (!boxes.has(series)) box(series);
      const { whole, chart, value, off, draw } = boxes.get(series);
      if (!whole.isConnected) all.append(whole);
      const column = values[series] || [];
      whole.hidden = SP.stream.base.includes(series) && steps.length > 0 && !(series in known) && !column.some(Number.isFinite);
      const at = SP.newest();
      value.textContent = at < 0 ? "" : SP.number(column[at], 4);
      const about = known[series];
      if (about) whole.title = `${about.says}${about.unit ? ` (${about.unit})` : ""}`;
      off.setAttribute("aria-label", `${SP.said("remove")}: ${SP.said(named(series))}`);
      if (chart.dataset.drawn) draw();
    }
    const [from, to] = range();
    const thin = (to - from) / POINTS > 2;
    SP.byId("drawn").textContent = SP.said(thin ? "steps: {n}; of every {k} the lowest and the highest are drawn" : "steps: {n}", { n: SP.number(to - from), k: Math.ceil((to - from) / POINTS) });
    const add = SP.byId("add");
    const wanted = ["", ...Object.keys(known).filter((name) => !shown.includes(name)).sort()];
    if (!add.options.length || wanted.join() !== [...add.options].map((o) => o.value).join()) {
      add.replaceChildren(...wanted.map((name) => SP.make("option", { value: name }, name ? named(name) : SP.word("another metric"))));
    }
  }
  function choose(series) {
    shown = [...new Set(series)];
    for (const [name, found] of boxes) {
      if (!shown.includes(name)) { found.whole.remove(); boxes.delete(name); }
    }
    SP.remember("series", shown.join() === SP.stream.base.join() ? "" : shown.join());
    SP.stream.ask(shown);
    show();
  }
  function look(wanted, count) {
    [zoomed, last] = [wanted, count];
    for (const tab of SP.byId("last").children) tab.setAttribute("aria-pressed", String(!zoomed && Number(tab.dataset.last) === last));
    SP.remember("last", zoomed || last === 1000 ? "" : last);
    SP.remember("from", zoomed ? zoomed.map((x) => Math.round(x)).join("-") : "");
    show();
  }
  function start() {
    const wanted = SP.address();
    const zoom = /^(-?\d+)-(\d+)$/.exec(wanted.from || "");
    logarithmic = wanted.log === "1";
    SP.byId("log").checked = logarithmic;
    if (logarithmic) SP.remember("log", "1");
    for (const tab of SP.byId("last").children) tab.addEventListener("click", () => look(null, Number(tab.dataset.last)));
    SP.byId("log").addEventListener("change", (event) => { logarithmic = event.target.checked; SP.remember("log", logarithmic ? "1" : ""); show(); });
    SP.byId("add").addEventListener("change", (event) => { if (event.target.value) choose([...shown, event.target.value]); });
    choose(wanted.series ? wanted.series.split(",").filter((name) => /^[\w.]+$/.test(name)) : SP.stream.base);
    look(zoom ? [Number(zoom[1]), Number(zoom[2])] : null, ["100", "0"].includes(wanted.last) ? Number(wanted.last) : 1000);
    SP.on("steps", show);
    SP.on("theme", show);
    SP.on("language", show);
  }
  return { start, named, thinned };
})();
