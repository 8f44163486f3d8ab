// Everything that is known of one token.
SP.detail = (() => {
  const rules = SP.data.rules;
  const drops = rules ? SP.unpack(rules.drops) : null;
  const clips = rules ? SP.unpack(rules.clips) : null;
  const top = SP.data.tokens.top;
  const topAt = top ? SP.unpack(top.at) : null;

  const pair = (name, value, lead) => [SP.make("dt", { class: lead ? "lead" : null }, SP.word(name)), SP.make("dd", { class: lead ? "lead" : null }, value)];
  const at = (name, i) => { const column = SP.strip.columns[name]; return column ? column[i] : NaN; };

  function sizes(i) {
    const d = at("value", i);
    const [r, t, floor] = [at("rollout_logp", i), at("trainer_logp", i), at("floor", i)];
    const found = [];
    if (SP.data.report.quantity === "prob_diff") found.push(...pair("prob diff", SP.number(d), true));
    else found.push(...pair("d", SP.number(d), true), ...pair("ratio", SP.number(Math.exp(d)), true));
    if (floor > 0) found.push(...pair("floors of this token", SP.number(d / floor, 3)));
    if (!Number.isNaN(r)) found.push(...pair("rollout log-prob", SP.number(r, 5)), ...pair("rollout probability", SP.number(Math.exp(r))));
    if (!Number.isNaN(t)) found.push(...pair("trainer log-prob", SP.number(t, 5)), ...pair("trainer probability", SP.number(Math.exp(t))));
    for (const [name, title] of [["trainer_entropy", "entropy"], ["advantage", "advantage"], ["ref_logp", "reference log-prob"], ["turn", "turn"], ["policy_version", "policy version"]]) {
      if (!Number.isNaN(at(name, i))) found.push(...pair(title, SP.number(at(name, i))));
    }
    found.push(...pair("mask", at("mask", i) ? "1" : SP.said("0, not a sampled token")));
    return SP.make("dl", {}, ...found);
  }
  function chips(i) {
    if (!rules || !at("mask", i)) return [];
    const made = rules.names.map((name, bit) => ((drops[i] >>> bit) & 1 ? SP.make("span", { class: "drop" }, name) : null)).filter(Boolean);
    const held = rules.names.map((name, bit) => ((clips[i] >>> bit) & 1 ? SP.make("span", { class: "clip" }, name) : null)).filter(Boolean);
    const block = (title, spans, none) => [SP.make("h4", {}, SP.word(title)), SP.make("div", { class: "rules" }, ...(spans.length ? spans : [SP.word(none)]))];
    return [...block("Corrections that would drop it", made, "none"), ...(held.length ? block("Corrections that would clip it", held, "none") : [])];
  }
  function likely(i) {
    if (!top) return [];
    let [low, high] = [0, topAt.length - 1];
    while (low < high) { const middle = (low + high) >> 1; if (topAt[middle] < i) low = middle + 1; else high = middle; }
    if (topAt[low] !== i) return [];
    return ["rollout", "trainer"].filter((side) => top[side]).flatMap((side) => {
      const ids = SP.unpack(top[side].ids);
      const logp = SP.unpack(top[side].logp);
      const k = ids.length / topAt.length;
      const body = SP.make("tbody");
      for (let j = 0; j < k; j++) {
        const id = ids[low * k + j];
        if (id < 0) continue;
        const own = id === at("id", i);
        body.append(SP.make("tr", {}, SP.make("td", { class: "piece" }, ...SP.strip.pieceOf(id).nodes, own ? " ●" : ""), SP.make("td", { class: "soft" }, String(id)), SP.make("td", {}, SP.number(Math.exp(logp[low * k + j]), 3))));
      }
      return [SP.make("h4", {}, SP.word(side === "rollout" ? "Most likely in the rollout" : "Most likely in the trainer")), SP.make("table", {}, body)];
    });
  }
  function show(row, place) {
    const box = SP.byId("detail");
    if (row === null || place === null) return;
    const i = SP.strip.find(row, place);
    const where = SP.make("p", { class: "soft" }, SP.said("response {row}, position {place}", { row: SP.numberOf(row), place }));
    if (i < 0) {
      const about = SP.heat.at(row, place);
      box.replaceChildren(SP.make("h3", {}, SP.make("i", {}, "·")), where, SP.make("p", {}, SP.said("This token is not held one by one. In the picture of the batch its cell is {value}.", { value: SP.number(about, 3) })));
      return;
    }
    if (SP.strip.columns.id) where.textContent += ` · id ${at("id", i)}`;
    box.replaceChildren(SP.make("h3", {}, ...SP.strip.nodesAt(i).map((n) => (typeof n === "string" ? n.replace(/ /g, "␣") : n))), where, sizes(i), ...chips(i), ...likely(i));
  }
  function start() {
    const empty = () => SP.byId("detail").replaceChildren(SP.make("p", { class: "soft" }, SP.word("Choose a token to see its numbers.")));
    empty();
    SP.on("token", show);
    SP.on("language", () => (SP.state.row === null ? empty() : show(SP.state.row, SP.state.at)));
  }
  return { start, show };
})();
