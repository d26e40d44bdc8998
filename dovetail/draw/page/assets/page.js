"use strict";
// Puts the page together: overview, devices, components, plan.
(() => {
  const {el, bytes, seconds, several} = dovetail;
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

  function tile(value, name, level) { return el("div", {class: `tile ${level || ""}`}, el("b", {}, value), el("span", {}, name)); }

  // Whether all fits, and how much room the fullest device has.
  function fit() {
    const known = data.devices.filter((one) => one.free || one.peak);
    const fullest = known.reduce((most, one) => (dovetail.room(one).part > dovetail.room(most).part ? one : most), known[0]);
    if (!fullest) return [];
    const {level, part, said} = dovetail.room(fullest);
    return [tile(level === "over" ? "does not fit" : "fits", `fullest is ${fullest.name}${isFinite(part) ? `, ${Math.round(100 * part)} %` : ""}: ${said}`, level)];
  }

  // The colours of the devices of a program: one above the other where they compute it together, else side by side by
  // the time that each of them works.
  function stripes(one) {
    const busy = one.devices.map((name) => (one.sliced || !one.lanes ? 1 : one.lanes.busy[one.lanes.lanes.indexOf(name)] || 0));
    const whole = busy.reduce((sum, part) => sum + part, 0);
    if (one.devices.length === 1 || !whole) return dovetail.colour(one.devices[0]);
    let now = 0;
    const stops = one.devices.map((name, place) => {
      const from = now;
      now += (100 * busy[place]) / whole;
      return `${dovetail.colour(name)} ${from}% ${now}%`;
    });
    return `linear-gradient(${one.sliced ? "180deg" : "90deg"}, ${stops.join(", ")})`;
  }

  function overview(section) {
    const sum = (pick) => data.programs.reduce((total, one) => total + pick(one), 0);
    const isOne = data.programs.length === 1;
    const took = data.plan ? data.plan.takes : isOne ? data.programs[0].takes : seconds(sum((one) => one.seconds));
    const {words, step, made} = data.head;
    section.append(
      el("p", {class: "asked"}, el("b", {}, words.join(" · ")), el("span", {}, [
        `${several(data.programs.length, "program")} on ${several(data.devices.length, "device")}`,
        several(sum((one) => one.operations), "operation"), made].join(" · "))),
      el("div", {class: "tiles"}, ...fit(), tile(took, data.plan ? "a picture, predicted" : `a call${isOne ? "" : " of each"}, predicted`),
        ...(step ? [tile(step, "a step")] : []), tile(bytes(data.weights), "of weights")));
    const whole = sum((one) => one.seconds) || 1;
    section.append(el("div", {class: "share", role: "img", "aria-label": "Share of the time", vars: {"--least": `${Math.min(7, 50 / data.programs.length)}%`}}, ...data.programs.map((one) => {
      const part = Math.round((100 * one.seconds) / whole);
      const node = el("i", {vars: {"flex-grow": Math.max(0.002, one.seconds / whole), background: stripes(one)}}, `${one.name} ${part < 1 ? "< 1" : part} %`);
      node.addEventListener("pointermove", (event) => dovetail.tell([one.name, `${one.takes}, ${part < 1 ? "less than 1" : part} % of the time`], event));
      node.addEventListener("pointerleave", dovetail.hush);
      return node;
    })), el("p", {class: "note caption"}, "Where the time goes; colours are those of devices, and short parts are drawn longer than they take."));
    const phases = new Map();
    data.programs.forEach((one, index) => phases.set(one.phase, [...(phases.get(one.phase) || []), [one, index]]));
    section.append(el("ol", {class: "phases"}, ...[...phases].map(([phase, list]) => el("li", {class: phases.size === 1 ? "only" : ""},
      phase ? el("h3", {}, phase) : null,
      ...list.map(([one, index]) => el("button", {type: "button", class: "card component", onclick: () => show(index, true)},
        el("b", {}, one.name), one.calls > 1 ? el("em", {}, `× ${one.calls}`) : null, el("small", {}, one.class),
        el("span", {class: "where"}, ...one.devices.map(dovetail.chip)),
        el("span", {class: "numbers"}, `${bytes(one.weights)} · ${one.takes}`)))))));
    if (data.others.length) section.append(others());
  }

  // The plan beside the quickest of the others that were found: what is otherwise in them, and how long they take.
  function others() {
    const most = Math.max(...data.others.map((one) => one.seconds)) || 1;
    const longer = (part) => (part ? `${Math.abs(part)} % ${part > 0 ? "longer" : "shorter"}` : "as long");
    return el("div", {class: "others"}, el("h3", {}, "Beside other plans"), el("ol", {}, ...data.others.map((one, index) =>
      el("li", {class: index ? "" : "taken"}, el("span", {}, one.what), el("i", {}, el("u", {vars: {width: `${(100 * one.seconds) / most}%`}})),
        el("b", {}, one.takes), el("em", {}, index ? longer(one.longer) : "")))));
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
    const facts = [`${several(one.operations, "operation")} in ${several(one.segments, "segment")}`,
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
    const number = (one) => /^(<?[\d.e–-]+( [KMGT]?i?B|%| [mµ]?s)?)?$/.test(one);
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
    section.append(el("h3", {}, "The command that runs this plan"), el("div", {class: "line"}, line,
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
