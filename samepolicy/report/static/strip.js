// The tokens of a response as text, each coloured by its value. Every piece of text becomes a text node.
SP.strip = (() => {
  const kept = SP.data.tokens;
  const columns = Object.fromEntries(Object.entries(kept.columns).map(([n, c]) => [n, SP.unpack(c)]));
  const rows = SP.unpack(kept.stretches.row);
  const starts = SP.unpack(kept.stretches.start);
  const firsts = SP.unpack(kept.stretches.first);
  const pieces = SP.data.words.pieces;
  const PAGE = 2048;
  const ODD = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
  const stretches = new Map();
  let shownRow = null;
  let page = 0;
  let places = [];

  for (let i = 0; i < rows.length; i++) {
    const length = (i + 1 < firsts.length ? firsts[i + 1] : kept.kept) - firsts[i];
    if (!stretches.has(rows[i])) stretches.set(rows[i], []);
    stretches.get(rows[i]).push({ start: starts[i], first: firsts[i], length });
  }
  const lengths = SP.unpack(SP.data.rows.columns.length);

  // Where a token is kept; -1 where it is not.
  function find(row, at) {
    for (const s of stretches.get(row) || []) if (at >= s.start && at < s.start + s.length) return s.first + at - s.start;
    return -1;
  }
  // 2: every token of the response is kept; 1: some are; 0: none is.
  function holds(row) {
    const found = stretches.get(row);
    if (!found) return 0;
    return found.length === 1 && found[0].start === 0 && found[0].length === lengths[row] ? 2 : 1;
  }

  const code = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  // A piece of text as nodes: what cannot be seen, or would turn the line around, is named instead of shown.
  function visible(text) {
    const nodes = [];
    let from = 0;
    for (const found of text.matchAll(ODD)) {
      if (found.index > from) nodes.push(text.slice(from, found.index));
      const sign = found[0];
      nodes.push(SP.make("i", {}, sign === "\n" ? "↵" : sign === "\t" ? "⇥" : sign === "\r" ? "␍" : `⟨${code(sign)}⟩`));
      if (sign === "\n") nodes.push("\n");
      from = found.index + sign.length;
    }
    if (from < text.length) nodes.push(text.slice(from));
    return nodes;
  }
  function pieceOf(id) {
    const found = pieces[id];
    if (found === undefined) return { nodes: [SP.make("i", {}, `⟨${id}⟩`)], text: "" };
    if (typeof found === "string") return { nodes: found === "" ? [SP.make("i", {}, "⟨ ⟩")] : visible(found), text: found };
    const more = found.length ? [SP.make("i", {}, `… ${SP.number(found.length)}`)] : [];
    if (found.bytes !== undefined) return { nodes: [SP.make("i", {}, `⟨${found.bytes.replace(/(..)(?=.)/g, "$1 ").toUpperCase()}⟩`), ...more], text: "" };
    return { nodes: [...visible(found.text), ...more], text: found.text };
  }
  const idAt = (i) => (columns.id ? columns.id[i] : null);
  const nodesAt = (i) => (columns.id ? pieceOf(idAt(i)).nodes : [SP.make("i", {}, "▪")]);
  function shortText(row, at) {
    const i = find(row, at);
    if (i < 0) return "·";
    const found = columns.id ? pieceOf(idAt(i)) : { text: "" };
    const text = found.text.slice(0, 24);
    return text.trim() && !ODD.test(text) ? text : SP.make("span", {}, ...nodesAt(i).slice(0, 3).map((n) => (typeof n === "string" ? n.slice(0, 24) : n.cloneNode(true))));
  }

  function paint(span, i) {
    const value = columns.value[i];
    if (Number.isNaN(value)) { span.style.backgroundColor = ""; span.style.color = ""; return; }
    span.style.backgroundColor = SP.colour.text(value);
    span.style.color = SP.colour.ink(value);
  }
  function token(i, at) {
    const masked = !columns.mask[i];
    const span = SP.make("span", { class: `tok${masked ? " off" : Number.isNaN(columns.value[i]) && SP.data.report.quantity ? " bad" : ""}`, tabindex: -1, "data-at": at }, ...nodesAt(i));
    paint(span, i);
    return span;
  }
  // Every kept place of a response, with gaps in between.
  function laid(row) {
    const found = [];
    let next = 0;
    for (const s of stretches.get(row) || []) {
      if (s.start > next) found.push({ gap: s.start - next });
      for (let k = 0; k < s.length; k++) found.push({ i: s.first + k, at: s.start + k });
      next = s.start + s.length;
    }
    if (found.length && next < lengths[row]) found.push({ gap: lengths[row] - next });
    return found;
  }
  function fill() {
    const box = SP.byId("strip");
    const part = places.slice(page * PAGE, (page + 1) * PAGE);
    box.replaceChildren(...part.map((p) => (p.gap ? SP.make("span", { class: "gapmark" }, SP.said("… {count} tokens that this file does not hold …", { count: SP.number(p.gap) })) : token(p.i, p.at))));
    if (!part.length) box.append(SP.make("span", { class: "gapmark" }, SP.word(lengths[shownRow] ? "This file does not hold the tokens of this response one by one; the picture of the batch shows their size." : "This response has no token.")));
    const pages = Math.ceil(places.length / PAGE);
    const turn = (by) => () => { page += by; fill(); };
    SP.byId("pager").replaceChildren(...(pages > 1 ? [
      SP.make("button", { type: "button", "aria-label": SP.said("previous part"), disabled: page === 0, onclick: turn(-1) }, "‹"),
      `${page + 1} / ${pages}`,
      SP.make("button", { type: "button", "aria-label": SP.said("next part"), disabled: page === pages - 1, onclick: turn(1) }, "›")] : []));
  }
  function headline(row) {
    const title = SP.byId("strip-title");
    title.textContent = SP.said("Response {number}", { number: SP.numberOf(row) });
    const columnsOf = SP.responses.columns;
    const facts = [["tokens", columnsOf.measured], ["mean abs d", columnsOf.mean_abs], ["mean d", columnsOf.mean_d], ["ESS", columnsOf.ess], ["reward", columnsOf.reward], ["advantage", columnsOf.advantage], ["step", columnsOf.step]]
      .filter(([, c]) => c && !Number.isNaN(c[row])).map(([name, c]) => `${SP.said(name)} ${SP.number(c[row], 3)}`);
    for (const [key, name] of [["finish_reason", "finish reason"], ["group", "prompt"]]) if (SP.data.rows.labels[key]) facts.push(`${SP.said(name)} ${SP.responses.value(key, row) || "–"}`);
    SP.byId("strip-facts").textContent = facts.join("  ·  ");
    for (const [id, texts] of [["prompt", SP.data.words.prompts], ["whole-text", columns.id && Object.keys(pieces).length ? {} : SP.data.words.texts]]) {
      const box = SP.byId(id);
      const found = texts[row];
      box.hidden = !found;
      if (found) box.querySelector("pre").replaceChildren(...visible(typeof found === "string" ? found : found.text), typeof found === "string" ? "" : `… (${SP.number(found.length)})`);
      if (id === "whole-text" && found) box.open = true;
    }
  }
  function show(row, at, scroll) {
    if (row !== shownRow) { shownRow = row; places = laid(row); page = -1; headline(row); }
    const where = places.findIndex((p) => p.at === at);
    const wanted = Math.max(0, Math.floor(where / PAGE));
    if (wanted !== page) { page = wanted; fill(); }
    const box = SP.byId("strip");
    for (const old of box.querySelectorAll(".now")) { old.classList.remove("now"); old.removeAttribute("aria-current"); old.tabIndex = -1; }
    const span = box.querySelector(`[data-at="${at}"]`);
    if (span) {
      span.classList.add("now");
      span.setAttribute("aria-current", "true");
      span.tabIndex = 0;
      const [inside, outside] = [span.getBoundingClientRect(), box.getBoundingClientRect()];
      if (inside.top < outside.top || inside.bottom > outside.bottom) box.scrollTop += inside.top - outside.top - box.clientHeight / 2;
    }
    if (scroll) SP.byId("tokens").scrollIntoView({ block: "start" });
  }
  function step(by) {
    const where = places.findIndex((p) => p.at === SP.state.at);
    for (let i = where + by; i >= 0 && i < places.length; i += by) if (places[i].at !== undefined) { SP.choose(shownRow, places[i].at); SP.byId("strip").querySelector(".now")?.focus({ preventScroll: true }); return; }
  }
  function start() {
    const box = SP.byId("strip");
    const at = (event) => event.target.closest?.(".tok");
    box.addEventListener("click", (event) => { const span = at(event); if (span) SP.choose(shownRow, Number(span.dataset.at)); });
    box.addEventListener("pointerover", (event) => { const span = at(event); if (span) SP.detail.show(shownRow, Number(span.dataset.at)); });
    box.addEventListener("pointerleave", () => SP.detail.show(SP.state.row, SP.state.at));
    box.addEventListener("keydown", (event) => { const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (by) { event.preventDefault(); step(by); } });
    SP.on("token", show);
    const repaint = () => { for (const span of box.querySelectorAll(".tok")) paint(span, find(shownRow, Number(span.dataset.at))); };
    SP.on("theme", repaint);
    SP.on("colour", repaint);
    SP.on("language", () => { if (shownRow !== null) { headline(shownRow); fill(); show(shownRow, SP.state.at, false); } about(); });
    about();
  }
  function about() {
    const share = { kept: SP.number(kept.kept), of: SP.number(kept.of) };
    SP.byId("kept").textContent = kept.kept === kept.of ? SP.said("all {of} tokens of the run", share) : SP.said("{kept} of {of} tokens one by one", share);
    SP.byId("limits").textContent = kept.kept === kept.of ? SP.said("This file holds every token of the run.") : SP.data.run.shown < SP.data.run.responses ? SP.said("This file holds {kept} of {of} tokens one by one. The table, the picture and sums of responses are of {shown} of {all} responses: those with the largest differences, and some drawn by chance.", { ...share, shown: SP.number(SP.data.run.shown), all: SP.number(SP.data.run.responses) }) : SP.said("This file holds {kept} of {of} tokens one by one: those of the responses with the largest mean abs d, those of ordinary responses spread over the run, and the neighbours of the 500 largest values. Everything else on the page is of all tokens.", share);
  }
  return { start, find, holds, pieceOf, nodesAt, shortText, columns, stretches, kept, lengths, pieces, step, visible };
})();
