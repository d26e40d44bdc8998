"use strict";
// The blocks of a component from left to right in the order in which they run, in the lane of their device.
(() => {
  const {svg, bytes, seconds, several} = dovetail;
  const ROW = 54, BAR = 30, TOP = 2, LEFT = 84;

  dovetail.ribbon = (host, graph, program, open) => {
    const width = Math.max(300, host.clientWidth), lanes = program.devices;
    const text = (place) => graph.texts[place];
    const titles = dovetail.apart(graph.blocks.map((one) => text(one[0])));
    const named = runs(graph.blocks.map((one) => text(one[0]))), height = TOP + lanes.length * ROW + (named.length ? 14 : 2);
    const top = (row) => TOP + row * ROW + (ROW - BAR) / 2;
    // Width by time, but nothing so narrow that it cannot be seen.
    const least = 2, room = width - LEFT - 10 - least * graph.blocks.length;
    const whole = graph.blocks.reduce((sum, one) => sum + one[5], 0) || 1;
    const boxes = [];
    let x = LEFT;
    for (const one of graph.blocks) {
      const wide = least + (Math.max(0, room) * one[5]) / whole;
      boxes.push({x, wide, one});
      x += wide;
    }
    const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, class: "ribbon", role: "group",
      "aria-label": `${graph.blocks.length} blocks on ${lanes.join(" and ")}; arrow keys go through them`});
    lanes.forEach((name, row) => picture.append(
      svg("rect", {x: LEFT, y: top(row), width: width - LEFT - 10, height: BAR, class: "lane-bed", rx: 5}),
      svg("text", {x: LEFT - 10, y: top(row) + BAR / 2 + 4, class: "lane", "text-anchor": "end"}, name)));
    const blockAt = (node) => boxes.findIndex(({one}) => one[2] <= node && node < one[3]);
    if (!program.sliced) arrows(picture, graph, boxes, lanes, blockAt, top);
    const marks = [];
    boxes.forEach(({x: start, wide, one}, index) => {
      for (const name of text(one[1]).split(" & ")) {
        const row = lanes.indexOf(name);
        const group = svg("g", {class: "block", vars: {"--c": dovetail.colour(name)}},
          svg("rect", {x: start + 0.5, y: top(row), width: Math.max(1, wide - 1), height: BAR, rx: Math.min(4, wide / 3),
            class: index % 2 ? "odd" : "even"}));
        label(group, text(one[0]), start, wide, top(row) + BAR / 2 + 4);
        marks.push({node: group, open: () => open(index), lines: () => [titles[index], text(one[1]),
          `${several(one[3] - one[2], "operation")}, ${bytes(one[4])} of weights`, `${seconds(one[5] / 1e6)} a call`, "click or Enter shows its operations"]});
        picture.append(group);
      }
    });
    for (const {first, last, name} of named) {
      const from = boxes[first].x, wide = boxes[last].x + boxes[last].wide - from;
      const shown = wide > name.length * 6 ? name : wide > 90 ? `${name.slice(0, Math.floor(wide / 6) - 1)}…` : "";
      if (shown) picture.append(svg("text", {x: from + wide / 2, y: height - 4, "text-anchor": "middle", class: "run"}, shown));
    }
    dovetail.marks(picture, marks);
    host.replaceChildren(picture);
  };

  // Blocks of one list that follow one another, with the name of the list.
  function runs(titles) {
    const found = [];
    titles.forEach((title, index) => {
      const [, list, number] = title.match(/^(.*)\.(\d+)$/) || [], before = found[found.length - 1];
      if (list && before && before.list === list && before.last === index - 1) Object.assign(before, {last: index, to: number});
      else if (list) found.push({list, first: index, last: index, from: number, to: number});
    });
    return found.filter((one) => one.last > one.first).map((one) => ({...one, name: `${one.list} ${one.from}–${one.to}`}));
  }

  function label(group, name, start, wide, y) {
    const short = name.match(/\d+$/) && wide < name.length * 6.5 ? name.match(/\d+$/)[0] : name;
    if (wide > short.length * 6.5 + 2) group.append(svg("text", {x: start + wide / 2, y, "text-anchor": "middle"}, short));
  }

  function arrows(picture, graph, boxes, lanes, blockAt, top) {
    const sums = new Map();
    for (const [value, reader, source, target, size] of graph.crossings) {
      const from = value < 0 ? 0 : blockAt(value), to = reader < 0 ? boxes.length - 1 : blockAt(reader);
      const key = JSON.stringify([source, target, to]), known = sums.get(key) || [0, 0, 0];
      sums.set(key, [Math.max(known[0], from), known[1] + size, known[2] + 1]);
    }
    for (const [key, [from, size, values]] of sums) {
      const [source, target, to] = JSON.parse(key);
      const a = boxes[from], b = boxes[to], up = lanes.indexOf(source), down = lanes.indexOf(target);
      if (!a || !b || up < 0 || down < 0) continue;
      const x1 = a.x + a.wide - 1, x2 = b.x + 1, below = down > up;
      const y1 = top(up) + (below ? BAR : 0), y2 = top(down) + (below ? 0 : BAR), middle = (y1 + y2) / 2;
      const path = svg("path", {d: `M${x1},${y1} C${x1},${middle} ${x2},${middle} ${x2},${y2}`, class: "cross"});
      path.addEventListener("pointermove", (event) => dovetail.tell([`${bytes(size)} cross in ${values} ${values === 1 ? "value" : "values"}`, `${source} to ${target}`], event));
      path.addEventListener("pointerleave", dovetail.hush);
      picture.append(path);
    }
  }
})();
