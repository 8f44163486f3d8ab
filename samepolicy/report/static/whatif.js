// A correction at any threshold, from sums over bins of d and over responses.
SP.whatif = (() => {
  const sums = SP.data.sums;
  if (!sums) return { start() {}, at() { return null; } };
  const [edges, count, w, w2] = ["edges", "count", "w", "w2"].map((name) => SP.unpack(sums[name]));
  const total = count.reduce((a, b) => a + b, 0);

  // Sums over the tokens with d from a on and below b; the bins at the ends count by their share.
  function between(a, b) {
    const found = [0, 0, 0];
    for (let i = 0; i < count.length; i++) {
      const share = Math.max(0, Math.min(edges[i + 1], b) - Math.max(edges[i], a)) / (edges[i + 1] - edges[i]);
      const whole = edges[i] >= a && edges[i + 1] <= b ? 1 : Math.min(1, share);
      found[0] += count[i] * whole;
      found[1] += w[i] * whole;
      found[2] += w2[i] * whole;
    }
    return found;
  }
  const ofTokens = {
    truncate: (tau) => { const under = between(-Infinity, Math.log(tau)); const over = total - under[0]; return { sum: under[1] + over * tau, sum2: under[2] + over * tau * tau, kept: total, clipped: over }; },
    mask: (tau) => { const [n, s, s2] = between(-Infinity, Math.log(tau)); return { sum: s, sum2: s2, kept: n, clipped: total - n }; },
    band: (tau) => { const [n, s, s2] = between(-Math.log(tau), Math.log(tau)); return { sum: s, sum2: s2, kept: n, clipped: total - n }; },
  };
  function ofResponses(tau, kind) {
    const c = SP.responses.columns;
    const found = { sum: 0, sum2: 0, kept: 0, clipped: 0, rows: 0, of: 0 };
    for (let row = 0; row < SP.data.rows.count; row++) {
      const [n, mean] = [c.measured[row], c.mean_d[row]];
      if (!n || Number.isNaN(mean)) continue;
      const out = mean > Math.log(tau) || (kind === "geo-band" && mean < -Math.log(tau));
      found.of += 1;
      if (kind === "geo-truncate") {
        const weight = Math.min(Math.exp(mean), tau);
        found.sum += n * weight; found.sum2 += n * weight * weight; found.kept += n; found.rows += 1;
        if (out) found.clipped += n;
      } else if (out) found.clipped += n;
      else { found.sum += c.sum_w[row]; found.sum2 += c.sum_w2[row]; found.kept += n; found.rows += 1; }
    }
    return found;
  }
  function at(kind, tau) {
    const found = kind.startsWith("geo") ? ofResponses(tau, kind) : ofTokens[kind](tau);
    return { ess: found.sum2 > 0 ? (found.sum * found.sum) / (total * found.sum2) : 0, kept: found.kept / total, clipped: found.clipped / total, mean: found.kept ? found.sum / found.kept : NaN, rows: found.of === undefined ? NaN : found.rows / found.of };
  }

  const TICKS = [1.001, 1.003, 1.01, 1.03, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20];
  const low = Math.log(0.001);
  const high = Math.log(20);
  const tauAt = (place) => 1 + Math.exp(low + ((high - low) * place) / 1000);
  const placeOf = (tau) => Math.round((1000 * (Math.log(Math.max(tau - 1, 1e-9)) - low)) / (high - low));
  function show() {
    const kind = SP.byId("rule").value;
    const tau = tauAt(Number(SP.byId("threshold").value));
    const found = at(kind, tau);
    SP.byId("threshold-at").textContent = SP.number(tau, 4);
    const tile = (name, value) => SP.make("div", {}, SP.make("dt", {}, SP.word(name)), SP.make("dd", {}, value));
    SP.byId("effect").replaceChildren(tile("ESS", SP.number(found.ess, 4)), tile("kept tokens", SP.percent(found.kept)), tile(kind.includes("truncate") ? "clipped tokens" : "tokens without weight", SP.percent(found.clipped)), tile("mean weight", SP.number(found.mean, 4)), ...(Number.isNaN(found.rows) ? [] : [tile("responses kept", SP.percent(found.rows))]));
    SP.charts.place(SP.byId("sweep"), () => figure(kind, tau));
  }
  function figure(kind, tau) {
    const x = Array.from({ length: 90 }, (_, i) => tauAt((1000 * i) / 89));
    const found = x.map((t) => at(kind, t));
    const line = (name, read, colour, dash) => ({ type: "scatter", mode: "lines", x: x.map((t) => t - 1), customdata: x, y: found.map(read), name: SP.said(name), line: { color: colour, width: 2, dash }, hovertemplate: "τ %{customdata:.4g}: %{y:.4f}<extra></extra>" });
    return {
      data: [line("ESS", (f) => f.ess, "#2f6fb0"), line("kept tokens", (f) => f.kept, "#7d8590", "dot"), line(kind.includes("truncate") ? "clipped tokens" : "tokens without weight", (f) => f.clipped, "#c8551b", "dash")],
      layout: { xaxis: { title: { text: "threshold τ" }, type: "log", zeroline: false, tickvals: TICKS.map((t) => t - 1), ticktext: TICKS.map(String) }, yaxis: { title: { text: "share of the tokens" }, range: [-0.02, 1.05] }, legend: {}, margin: { t: 10 }, shapes: [{ type: "line", x0: tau - 1, x1: tau - 1, yref: "paper", y0: 0, y1: 1, line: { color: "#8b5fbf", width: 1.5 } }] },
    };
  }
  function start() {
    const [rule, slide] = [SP.byId("rule"), SP.byId("threshold")];
    const given = SP.address();
    if ([...rule.options].some((o) => o.value === given.rule)) rule.value = given.rule;
    slide.value = placeOf(Number(given.tau) || 2);
    const changed = () => { show(); SP.remember("rule", rule.value === "truncate" ? "" : rule.value); SP.remember("tau", SP.number(tauAt(Number(slide.value)), 4)); };
    rule.addEventListener("change", changed);
    slide.addEventListener("input", changed);
    SP.on("language", show);
    show();
  }
  return { start, at, tauAt, placeOf };
})();
