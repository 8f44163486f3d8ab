"use strict";
// The page's data, its words, its address, and small helpers. Text of a run reaches the page as text nodes only.
const SP = (() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("data");
  const chinese = read("chinese");
  const arrays = { f8: Float64Array, f4: Float32Array, i1: Int8Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array };
  const unpackedBefore = new WeakMap();

  function bytes(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }

  // The inverse of `packed` in Python; a mapping is unpacked once.
  function unpack(value) {
    if (!value) return null;
    let found = unpackedBefore.get(value);
    if (!found) {
      found = "constant" in value
        ? new Float64Array(value.count).fill(value.constant === null ? NaN : value.constant)
        : new arrays[value.dtype](bytes(value.bdata).buffer);
      unpackedBefore.set(value, found);
    }
    return found;
  }

  const make = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, given] of Object.entries(attributes)) {
      if (given === null || given === undefined || given === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), given);
      else if (name === "class") made.className = given;
      else made.setAttribute(name, given === true ? "" : given);
    }
    made.append(...children.filter((c) => c !== null && c !== undefined));
    return made;
  };
  const byId = (id) => document.getElementById(id);

  // ---------------------------------------------------------------- words
  let language = "en";
  const said = (text, values) => {
    const known = language === "zh" && chinese[text] ? chinese[text] : text;
    return values ? known.replace(/\{(\w+)\}/g, (_, name) => values[name]) : known;
  };
  const word = (text) => make("span", { "data-t": text }, said(text));

  function translate(root = document) {
    for (const one of root.querySelectorAll("[data-t]")) one.textContent = said(one.dataset.t);
    for (const [name, target] of [["tLabel", "aria-label"], ["tPlaceholder", "placeholder"]]) {
      const key = name.replace(/[A-Z]/g, (c) => `-${c.toLowerCase()}`);
      for (const one of root.querySelectorAll(`[data-${key}]`)) one.setAttribute(target, said(one.dataset[name]));
    }
    for (const one of root.querySelectorAll("[data-zh]")) {
      if (one.dataset.en === undefined) one.dataset.en = one.textContent;
      one.textContent = language === "zh" && one.dataset.zh ? one.dataset.zh : one.dataset.en;
    }
  }

  // ---------------------------------------------------------------- numbers
  function number(value, digits = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "inf" : "−inf";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US").replace("-", "−");
    const size = Math.abs(value);
    const text = size < 1e-3 || size >= 1e5 ? value.toExponential(digits - 2) : String(+value.toPrecision(digits));
    return text.replace("-", "−").replace("e-", "e−").replace("e+", "e");
  }
  const percent = (value) => {
    if (!Number.isFinite(value)) return "–";
    if (value > 0 && value < 5e-4) return "< 0.1 %";
    if (value > 0.9995 && value < 1) return "> 99.9 %";
    return `${(100 * value).toFixed(1)} %`;
  };

  // ---------------------------------------------------------------- what listens to what
  const listeners = {};
  const on = (what, call) => (listeners[what] = listeners[what] || []).push(call);
  const tell = (what, ...given) => (listeners[what] || []).forEach((call) => call(...given));

  // ---------------------------------------------------------------- the address
  const state = { row: null, at: null };
  const numbers = data.rows && data.rows.columns.number ? unpack(data.rows.columns.number) : null;
  const numberOf = (row) => (numbers ? numbers[row] : row); // a page may hold some of a run's responses
  const rowOf = (number) => (numbers ? numbers.indexOf(number) : number < data.rows.count ? number : -1);
  const kept = {};
  function remember(name, value) {
    if (value === "" || value === null || value === undefined) delete kept[name];
    else kept[name] = String(value);
    const query = new URLSearchParams(kept);
    if (state.row !== null) query.set("token", `${numberOf(state.row)}:${state.at}`);
    const text = query.toString().replace(/%3A/g, ":");
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }
  function address() {
    const text = location.hash.slice(1);
    return text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : {};
  }
  function choose(row, at, { scroll = false, quiet = false } = {}) {
    state.row = row;
    state.at = at;
    if (!quiet) remember("token", null);
    tell("token", row, at, scroll);
  }

  // ---------------------------------------------------------------- looks
  const store = { get: (k) => { try { return localStorage.getItem(k); } catch { return null; } }, set: (k, v) => { try { localStorage.setItem(k, v); } catch { /* not kept */ } } };
  const dark = () => document.documentElement.dataset.theme === "dark";
  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    tell("theme");
  }
  function setLanguage(name) {
    language = name;
    document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
    byId("language").textContent = name === "zh" ? "English" : "中文";
    byId("language").lang = name === "zh" ? "en" : "zh";
    translate();
    tell("language");
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  return { data, numberOf, rowOf, make, byId, unpack, said, word, number, percent, on, tell, state, remember, address, choose, store, dark, setTheme, setLanguage, css, kept, language: () => language };
})();
