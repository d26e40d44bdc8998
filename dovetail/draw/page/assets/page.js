"use strict";
// Puts the page together: overview, devices, components, plan.
(() => {
  const {el, bytes, seconds, count} = dovetail;
  const data = dovetail.json("data");
  const byId = (id) => document.getElementById(id);
  dovetail.devices = data.devices.map((one) => one.name).filter((name) => name !== "cpu");

  const root = document.documentElement, redraw = [];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  dovetail.onTheme = (draw) => redraw.push(draw);
  const changed = () => redraw.forEach((draw) => draw());
  dark.addEventListener("change", changed);
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; changed(); });

  function tile(value, name) { return el("div", {class: "tile"}, el("b", {}, value), el("span", {}, name)); }

  // The colours of all devices that compute a program together, one above the other; else that of its main device.
  function stripes(one) {
    if (!one.sliced) return dovetail.colour(one.devices[0]);
    const stops = one.devices.map((name, row) => `${dovetail.colour(name)} ${(100 * row) / one.devices.length}% ${(100 * (row + 1)) / one.devices.length}%`);
    return `linear-gradient(${stops.join(", ")})`;
  }

  function overview(section) {
    const sum = (pick) => data.programs.reduce((total, one) => total + pick(one), 0);
    const took = data.plan ? data.plan.takes : seconds(sum((one) => one.seconds));
    section.append(el("div", {class: "tiles"},
      tile(took, data.plan ? "a picture, predicted" : "a call of each, predicted"),
      tile(bytes(data.weights), "of weights"),
      tile(count(data.programs.length), data.programs.length === 1 ? "component" : "programs"),
      tile(count(data.devices.length), data.devices.length === 1 ? "device" : "devices"),
      tile(count(sum((one) => one.operations)), "operations")));
    const whole = sum((one) => one.seconds) || 1;
    section.append(el("div", {class: "share", role: "img", "aria-label": "Share of the time"}, ...data.programs.map((one) => {
      const part = el("i", {vars: {"flex-grow": Math.max(0.002, one.seconds / whole), background: stripes(one)}});
      part.addEventListener("pointermove", (event) => dovetail.tell([one.name, `${one.takes}, ${Math.round((100 * one.seconds) / whole)} %`], event));
      part.addEventListener("pointerleave", dovetail.hush);
      return part;
    })));
    const phases = new Map();
    data.programs.forEach((one, index) => phases.set(one.phase, [...(phases.get(one.phase) || []), [one, index]]));
    section.append(el("ol", {class: "phases"}, ...[...phases].map(([phase, list]) => el("li", {class: phases.size === 1 ? "only" : ""},
      phase ? el("h3", {}, phase) : null,
      ...list.map(([one, index]) => el("button", {type: "button", class: "card component", onclick: () => show(index, true)},
        el("b", {}, one.name), one.calls > 1 ? el("em", {}, `× ${one.calls}`) : null, el("small", {}, one.class),
        el("span", {class: "where"}, ...one.devices.map(dovetail.chip)),
        el("span", {class: "numbers"}, `${bytes(one.weights)} · ${one.takes}`)))))));
  }

  let picked = null, show = () => {};
  function programs(section) {
    const body = el("div", {class: "program", role: "tabpanel"});
    const tabs = dovetail.tabs("Component", data.programs.map((one) => one.name), (index) => draw(index));
    section.append(el("div", {class: "head"}, el("h2", {}, "Components")), tabs.list, body);
    const made = new Map();
    function draw(index) {
      if (!made.has(index)) made.set(index, program(data.programs[index], index));
      picked = made.get(index);
      body.replaceChildren(picked.node);
      picked.paint();
    }
    let width = 0;
    new ResizeObserver(() => { if (picked && body.clientWidth !== width) { width = body.clientWidth; picked.paint(); } }).observe(body);
    show = (index, jump) => { tabs.pick(index); if (jump) section.scrollIntoView({behavior: "smooth"}); };
    tabs.pick(data.programs.reduce((best, one, index) => (one.weights > data.programs[best].weights ? index : best), 0));
  }

  function program(one, index) {
    const graph = dovetail.json(`graph-${index}`);
    const tree = dovetail.tree(graph, one);
    const ribbon = el("div", {class: "draw"}), lanes = el("div", {class: "draw"});
    const facts = [`${count(one.operations)} operations in ${count(one.segments)} ${one.segments === 1 ? "segment" : "segments"}`,
      `${bytes(one.weights)} of weights`, one.crosses ? `${bytes(one.crosses)} cross in a call` : "nothing crosses",
      `${one.call_takes} a call`];
    const node = el("div", {},
      el("p", {class: "lead"}, facts.join(" · ")), one.why ? el("p", {class: "note"}, one.why) : null,
      ...(one.marks ? [el("p", {class: "note"}, `${one.marks}.`)] : []),
      el("h3", {}, "Blocks, in the order in which they run"), ribbon,
      one.lanes ? el("h3", {}, "One call, by device and link") : null, one.lanes ? lanes : null,
      one.lanes ? dovetail.busy(one.lanes) : null,
      el("h3", {}, "Operations"), tree.node);
    return {node, search: tree.search, paint: () => {
      dovetail.ribbon(ribbon, graph, one, tree.openBlock);
      if (one.lanes) dovetail.lanes(lanes, one.lanes);
    }};
  }

  function table(head, rows) {
    const number = (one) => /^([\d.e-]+( [KMGT]?i?B|%)?)?$/.test(one);
    const kinds = head.map((_, place) => (place === 0 ? "name" : rows.length && rows.every((row) => number(row[place])) ? "number" : ""));
    return el("div", {class: "scroll", tabindex: 0}, el("table", {},
      el("thead", {}, el("tr", {}, ...head.map((one, place) => el("th", {scope: "col", class: kinds[place]}, one)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((one, place) => el("td", {class: kinds[place]}, one)))))));
  }

  function plan(section) {
    section.append(el("div", {class: "head"}, el("h2", {}, "Plan")));
    if (data.plan) {
      section.append(table(data.plan.head, data.plan.rows),
        el("dl", {class: "why"}, ...data.plan.reasons.flatMap(([name, reason]) => [el("dt", {}, name), el("dd", {}, reason)])),
        ...data.plan.together.map((one) => table(one.head, one.rows)),
        table(data.plan.head_of_devices, data.plan.rows_of_devices),
        el("ul", {class: "remarks"}, ...data.plan.remarks.map((one) => el("li", {}, one))));
    }
    const said = el("span", {role: "status", class: "found"});
    const line = el("code", {tabindex: 0}, data.line);
    section.append(el("h3", {}, "The command that paints so"), el("div", {class: "line"}, line,
      el("button", {type: "button", onclick: async () => {
        const range = document.createRange();
        range.selectNodeContents(line);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        try { await navigator.clipboard.writeText(data.line); said.textContent = "copied"; } catch { said.textContent = "selected"; }
      }}, "Copy"), said));
  }

  overview(byId("overview"));
  dovetail.memory(byId("memory"), data);
  programs(byId("programs"));
  plan(byId("plan"));
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && picked) { picked.search.focus(); event.preventDefault(); }
  });
  root.dataset.ready = "true";
})();
