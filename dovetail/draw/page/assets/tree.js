"use strict";
// The operations as a tree of segments, blocks and operations, of which only what is on the screen is in the page.
(() => {
  const {el, bytes, seconds, count, several} = dovetail;
  const ROW = 28, MORE = 12;

  dovetail.tree = (graph, program) => {
    const text = (place) => graph.texts[place];
    const total = graph.name.length;
    const open = new Set();
    let rows = [], active = 0, wanted = "", readers = null, offset = 0;

    const groups = (list, depth, kind, titles) => list.map(([title, place, start, stop, size, took], index) => ({
      key: `${kind}${index}`, depth, kind, start, stop, size, took, place: text(place), title: titles[index], names: text(title),
      facts: `${several(stop - start, "operation")} · ${size ? bytes(size) : "no weights"} · ${seconds(took / 1e6)}`,
    }));
    // One segment alone is all there is, and says nothing.
    const cut = graph.segments.length > 1 ? graph.segments : [];
    const segments = groups(cut, 0, "segment", cut.map(([title], index) => {
      const names = text(title).split(", ");
      return `segment ${index + 1}: ${names.length > 2 ? `${names[0]} … ${names[names.length - 1]}` : names.join(", ")}`;
    }));
    const blocks = groups(graph.blocks, segments.length ? 1 : 0, "block", dovetail.apart(graph.blocks.map(([title]) => text(title))));
    const operation = (index, depth) => ({key: `n${index}`, depth, kind: "operation", index, place: text(graph.place[index]),
      title: graph.name[index], facts: text(graph.type[index]), op: text(graph.op[index])});

    function unfolded() {
      if (wanted) return found();
      const list = [];
      const ofBlock = (block) => {
        list.push(block);
        if (open.has(block.key)) for (let at = block.start; at < block.stop; at++) list.push(operation(at, block.depth + 1));
      };
      if (!segments.length) blocks.forEach(ofBlock);
      for (const segment of segments) {
        list.push(segment);
        if (open.has(segment.key)) blocks.filter((one) => segment.start <= one.start && one.start < segment.stop).forEach(ofBlock);
      }
      return list;
    }

    function found() {
      const hits = graph.texts.map((one) => one.toLowerCase().includes(wanted));
      const columns = [graph.op, graph.type, graph.place, graph.module, graph.source, graph.split];
      const list = [];
      for (let at = 0; at < total; at++) {
        const hit = graph.name[at].toLowerCase().includes(wanted) || columns.some((one) => hits[one[at]]) ||
          graph.weights[at].some((one) => hits[one]);
        if (hit) list.push(operation(at, 0));
      }
      return list;
    }

    const sizer = el("div", {class: "sizer"});
    const view = el("div", {class: "rows", role: "tree", tabindex: 0, "aria-label": `Operations of ${program.name}`}, sizer);
    const said = el("span", {class: "found", role: "status"});
    const details = el("aside", {class: "details", "aria-live": "polite"});
    const search = el("input", {type: "search", placeholder: "Search names, operations, shapes, modules, lines   ( / )",
      "aria-label": "Search operations", spellcheck: "false", oninput: () => {
        wanted = search.value.trim().toLowerCase();
        active = 0;
        view.scrollTop = 0;
        again();
      }, onkeydown: (event) => {
        if (event.key === "ArrowDown" || event.key === "Enter") { view.focus(); event.preventDefault(); }
        if (event.key === "Escape") { search.value = ""; search.dispatchEvent(new Event("input")); }
      }});

    function again() {
      rows = unfolded();
      active = Math.min(active, rows.length - 1);
      sizer.style.height = `${rows.length * ROW}px`;
      split.style.setProperty("--height", `${Math.max(240, Math.min(480, rows.length * ROW))}px`);
      said.textContent = wanted ? `${count(rows.length)} of ${count(total)} operations` : `${count(total)} operations`;
      paint();
      if (rows[active]) tell(rows[active]);
    }

    function paint() {
      const first = Math.max(0, Math.floor(view.scrollTop / ROW) - MORE);
      const last = Math.min(rows.length, Math.ceil((view.scrollTop + view.clientHeight) / ROW) + MORE);
      const made = [];
      for (let at = first; at < last; at++) made.push(line(rows[at], at));
      sizer.replaceChildren(...made);
      view.setAttribute("aria-activedescendant", rows.length ? `row-${active}` : "");
    }

    function line(row, at) {
      const folds = row.kind !== "operation";
      return el("div", {
        class: `row ${row.kind}${at === active ? " active" : ""}`, id: `row-${at}`, role: "treeitem",
        "aria-level": row.depth + 1, "aria-selected": String(at === active),
        "aria-expanded": folds ? String(open.has(row.key)) : null,
        vars: {top: `${at * ROW}px`, "--depth": row.depth},
        onclick: () => { active = at; folds ? fold(row) : paint(); tell(row); },
        onpointerenter: () => tell(row),
      },
      el("i", {class: folds ? "fold" : "leaf"}),
      el("b", {}, row.title), row.op ? el("code", {}, row.op) : null, el("span", {class: "facts"}, row.facts),
      ...dovetail.chips(row.place));
    }

    function fold(row, wide) {
      const now = open.has(row.key);
      if (wide !== undefined && wide === now) return false;
      now ? open.delete(row.key) : open.add(row.key);
      again();
      return true;
    }

    function move(to) {
      active = Math.max(0, Math.min(rows.length - 1, to));
      const top = active * ROW;
      if (top < view.scrollTop) view.scrollTop = top;
      if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
      paint();
      if (rows[active]) tell(rows[active]);
    }

    function parentOf(at) {
      let place = at;
      while (place > 0 && rows[place].depth >= rows[at].depth) place--;
      return place;
    }

    const page = () => Math.max(1, Math.floor(view.clientHeight / ROW) - 1);
    const keys = {
      ArrowDown: () => move(active + 1), ArrowUp: () => move(active - 1),
      PageDown: () => move(active + page()), PageUp: () => move(active - page()),
      Home: () => move(0), End: () => move(rows.length - 1),
      ArrowRight: () => { const row = rows[active]; if (row.kind === "operation" || !fold(row, true)) move(active + 1); },
      ArrowLeft: () => { const row = rows[active]; if (row.kind === "operation" || !fold(row, false)) move(parentOf(active)); },
      Enter: () => { if (rows[active].kind !== "operation") fold(rows[active]); },
      " ": () => { if (rows[active].kind !== "operation") fold(rows[active]); },
    };
    view.addEventListener("keydown", (event) => {
      if (keys[event.key] && rows.length) { keys[event.key](); event.preventDefault(); }
    });
    view.addEventListener("scroll", paint, {passive: true});
    new ResizeObserver(paint).observe(view);

    function readersOf(index) {
      if (!readers) {
        readers = Array.from({length: total}, () => []);
        graph.reads.forEach((list, reader) => list.forEach((one) => readers[one].push(reader)));
      }
      return readers[index];
    }

    // Shows an operation among the others: its segment and its block are unfolded.
    function reveal(index) {
      search.value = wanted = "";
      const has = (one) => one.start <= index && index < one.stop;
      [...segments, ...blocks].filter(has).forEach((one) => open.add(one.key));
      again();
      move(rows.findIndex((row) => row.index === index));
      view.focus();
    }

    function links(list) {
      const shown = list.slice(0, 12).map((index) =>
        el("button", {type: "button", class: "link", onclick: () => reveal(index)}, graph.name[index]));
      return [...shown, list.length > 12 ? ` and ${list.length - 12} more` : null];
    }

    function tell(row) {
      const item = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
      const list = [...item("runs on", ...dovetail.chips(row.place))];
      if (row.kind === "operation") {
        const at = row.index;
        list.push(...item("operation", el("code", {}, text(graph.op[at]))), ...item("yields", text(graph.type[at])));
        if (text(graph.split[at])) list.push(...item("split in columns", text(graph.split[at])));
        if (graph.weights[at].length) list.push(...item("weights", ...graph.weights[at].map((one) => el("div", {}, text(one)))));
        list.push(...item("time", seconds(graph.seconds[at] / 1e6)));
        if (text(graph.module[at])) list.push(...item("module", text(graph.module[at])));
        if (text(graph.source[at])) list.push(...item("source", text(graph.source[at])));
        if (graph.reads[at].length) list.push(...item("reads", ...links(graph.reads[at])));
        if (readersOf(at).length) list.push(...item("read by", ...links(readersOf(at))));
      } else {
        const kinds = new Map(), whole = graph.seconds.reduce((sum, one) => sum + one, 0) || 1;
        for (let at = row.start; at < row.stop; at++) kinds.set(text(graph.op[at]), (kinds.get(text(graph.op[at])) || 0) + 1);
        const most = [...kinds].sort((a, b) => b[1] - a[1]).slice(0, 6);
        list.push(...item("time", `${seconds(row.took / 1e6)}, ${row.took < whole / 100 ? "less than 1" : Math.round((100 * row.took) / whole)} % of a call`),
          ...item("weights", row.size ? bytes(row.size) : "none"),
          ...item(`${several(row.stop - row.start, "operation")}${kinds.size > most.length ? ", most of them" : ""}`, ...most.map(([op, times]) => el("div", {}, el("code", {}, op), ` × ${times}`))),
          ...(row.kind === "segment" ? item("modules", row.names) : []));
      }
      details.replaceChildren(el("h4", {}, row.title), el("dl", {}, ...list));
    }

    const split = el("div", {class: "split"}, view, details);
    const node = el("div", {class: "tree"},
      el("div", {class: "bar"}, search, said,
        el("button", {type: "button", onclick: () => { segments.concat(blocks).forEach((one) => open.add(one.key)); again(); }}, "Unfold all"),
        el("button", {type: "button", onclick: () => { open.clear(); again(); view.scrollTop = 0; }}, "Fold all")),
      split);
    requestAnimationFrame(again);
    return {node, search, openBlock: (index) => {
      search.value = wanted = "";
      const block = blocks[index];
      segments.filter((one) => one.start <= block.start && block.start < one.stop).forEach((one) => open.add(one.key));
      open.add(block.key);
      again();
      const at = rows.findIndex((row) => row.key === block.key);
      active = at;
      view.scrollTop = at * ROW;
      move(at);
      view.focus();
    }};
  };
})();
