"use strict";
// Memory over time as stacked areas, with what may be used of the device as a line.
(() => {
  const {el, bytes, bytesOf, secondsOf} = dovetail;
  const LAYERS = [
    ["resident", "weights that stay"], ["phase", "weights for the phase"], ["staged", "staging"],
    ["values", "live values"], ["scratch", "temporaries"],
  ];
  const POINTS = [];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The layers of one device on top of each other: [x, top of each layer, lowest first].
  function stacked(columns) {
    const below = new Array(columns.x.length).fill(0);
    return LAYERS.map(([name]) => columns[name].map((size, place) => (below[place] += size)));
  }

  // As much of a name as there is room for.
  function fitting(ctx, name, room) {
    if (ctx.measureText(name).width <= room) return name;
    for (let end = name.length - 1; end >= 3; end--) {
      const cut = `${name.slice(0, end)}…`;
      if (ctx.measureText(cut).width <= room) return cut;
    }
    return "";
  }

  // A time axis on which the call of each component has a least width: from seconds to places on it, and back.
  function axisOf(marks, end) {
    const calls = marks && marks.length > 1 ? marks : [["", "", 0, end, 1]];
    const least = end * Math.min(0.1, 0.5 / calls.length);
    const wide = calls.map(([, , from, to]) => Math.max(least, to - from));
    const scale = end / (wide.reduce((sum, one) => sum + one, 0) || 1);
    let at = 0;
    const parts = calls.map(([, , from, to], index) => {
      const part = {from, long: to - from, at, wide: wide[index] * scale};
      at += part.wide;
      return part;
    });
    const pick = (test) => parts.find(test) || parts[parts.length - 1];
    return {
      parts, isUneven: calls.some(([, , from, to]) => to - from < least),
      place: (time) => {
        const one = pick(({from, long}) => time <= from + long);
        return one.at + (one.long > 0 ? ((time - one.from) / one.long) * one.wide : 0);
      },
      time: (place) => {
        const one = pick((part) => place <= part.at + part.wide);
        return one.from + (one.wide > 0 ? ((place - one.at) / one.wide) * one.long : 0);
      },
    };
  }

  // Round numbers of seconds, and where each component begins, as far as they have room.
  function ticks(self, axis, low, high) {
    const wide = self.bbox.width / (devicePixelRatio || 1), gap = (56 * (high - low)) / wide, found = [];
    const rough = (axis.time(high) - axis.time(low)) / Math.max(1, wide / 90), power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) || power;
    const last = Math.min(axis.time(high) / step, axis.time(low) / step + 100);
    const round = [];
    for (let count = Math.ceil(axis.time(low) / step); count <= last; count++) round.push(axis.place(count * step));
    for (const place of [...axis.parts.map((one) => one.at), ...round].sort((a, b) => a - b)) {
      if (place >= low && place <= high && (!found.length || place - found[found.length - 1] >= gap)) found.push(place);
    }
    return found;
  }

  // Where in a picture which component works: a line at its start, and its name where there is room for it.
  function marked(self, marks) {
    const {ctx, bbox} = self, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${10.5 * ratio}px system-ui`;
    ctx.strokeStyle = css("--dim");
    ctx.fillStyle = css("--dim");
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    let before = -Infinity;  // lines that stand closer together than this are a smear
    for (const [name, , start, end, times] of marks) {
      const left = self.valToPos(start, "x", true), right = self.valToPos(end, "x", true);
      if (left < bbox.left - 1 || left > bbox.left + bbox.width || left - before < 10 * ratio) continue;
      before = left;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      const said = fitting(ctx, times > 1 ? `${name} × ${times}` : name, right - left - 6 * ratio);
      if (said) ctx.fillText(said, left + 3 * ratio, bbox.top - 4 * ratio);
    }
    ctx.restore();
  }

  function sayAbove({ctx, bbox}, text) {
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.fillStyle = css("--bad");
    ctx.textAlign = "right";
    ctx.textBaseline = "top";
    ctx.fillText(text, bbox.left + bbox.width - 4 * ratio, bbox.top + 4 * ratio);
    ctx.restore();
  }

  function chart(host, device, columns, end, marks) {
    const tops = stacked(columns), time = axisOf(marks, end), places = columns.x.map(time.place);
    const total = tops[LAYERS.length - 1], fullest = total.indexOf(Math.max(...total));
    const most = Math.max(...tops[LAYERS.length - 1], 1);
    const isCut = device.free > most * 4;  // a chart of it would be a line on the ground
    const shown = isCut ? most * 1.35 : Math.max(most, device.free) * 1.08;
    const budget = columns.x.map(() => device.free);
    const step = uPlot.paths.stepped({align: 1});
    // Highest layer first, each from the ground: the ones below are drawn over it.
    const order = LAYERS.map((_, place) => LAYERS.length - 1 - place);
    const area = (place) => ({
      stroke: css(`--layer-${place}`), fill: css(`--layer-${place}`), width: 0.5, paths: step, points: {show: false},
    });
    const drawn = marks && marks.map(([name, phase, from, to, times]) => [name, phase, time.place(from), time.place(to), times]);
    const axis = (more) => ({
      stroke: css("--dim"), grid: {stroke: css("--line"), width: 1}, ticks: {show: false}, font: "11px system-ui", ...more,
    });
    const plot = new uPlot({
      width: host.clientWidth || 600, height: 168, legend: {show: false}, padding: [marks ? 18 : 8, 8, 0, 0],
      cursor: {y: false, points: {show: false}, drag: {x: true, y: false}, sync: {key: "memory"}},
      scales: {x: {time: false, range: (_, low, high) => (high > low ? [low, high] : [0, end])}, y: {range: [0, shown]}},
      axes: [
        axis({splits: (self, _, low, high) => ticks(self, time, low, high), size: 20, gap: 3, space: 70,
              values: (_, places) => places.map((one) => secondsOf(time.time(one), end))}),
        axis({values: (_, ticks) => ticks.map((one) => (one ? bytes(one) : "0")), size: 74, space: 26,
              incrs: Array.from({length: 60}, (_, power) => 2 ** power)}),
      ],
      series: [{}, ...order.map(area), {stroke: css("--bad"), width: 1.5, dash: [5, 4], points: {show: false}}],
      hooks: {setCursor: [(self) => read(self.cursor.idx)], draw: [
        ...(drawn ? [(self) => marked(self, drawn)] : []),
        ...(isCut ? [(self) => sayAbove(self, `▲ ${bytes(device.free)} may be used, above this axis`)] : []),
      ]},
    }, [places, ...order.map((place) => tops[place]), budget], host);
    const out = host.parentElement.querySelector("output");
    const during = (place) => (marks || []).find(([, , from, to]) => columns.x[place] >= from && columns.x[place] <= to);
    function read(place) {
      const at = place == null ? fullest : place, [name] = during(at) || [""];
      const parts = LAYERS.filter(([layer]) => columns[layer][at]).map(([layer, say]) => `${say} ${bytesOf(columns[layer][at], total[fullest])}`);
      const when = place == null ? "Fullest" : `${secondsOf(columns.x[at], end)}${name ? `, ${name}` : ""}`;
      out.textContent = `${when}: ${parts.length > 1 ? `${bytesOf(total[at], total[fullest])} = ` : ""}${parts.join(" + ") || "nothing"}`;
    }
    read(null);
    new ResizeObserver(() => { if (host.clientWidth) plot.setSize({width: host.clientWidth, height: 168}); }).observe(host);
    POINTS.push(plot);
  }

  // The bytes of each layer at the fullest moment of a device, as its charts have them.
  function fullestOf(device, data) {
    const charts = data.picture ? [data.picture.devices] : data.programs.map((one) => one.memory);
    let most = -1, found = [device.weights, 0, device.staged, device.values, 0];
    for (const columns of charts.map((one) => one[device.name]).filter(Boolean)) {
      stacked(columns)[LAYERS.length - 1].forEach((size, place) => {
        if (size > most) [most, found] = [size, LAYERS.map(([name]) => columns[name][place])];
      });
    }
    return found;
  }

  function gauge(device, data) {
    const total = Math.max(device.total, device.peak) || 1;
    return el("div", {class: "gauge", role: "img", "aria-label": `${bytes(device.peak)} of ${bytes(device.free)}`},
      ...fullestOf(device, data).map((size, layer) => el("i", {title: `${LAYERS[layer][1]} ${bytes(size)}`,
        vars: {width: `${(100 * size) / total}%`, background: `var(--layer-${layer})`}})),
      el("u", {vars: {left: `${Math.min(100, (100 * device.free) / total)}%`}, title: `may use ${bytes(device.free)}`}));
  }

  function card(device, data) {
    const {level, said} = dovetail.room(device);
    return el("article", {class: `card device ${level}`},
      el("h3", {}, dovetail.chip(device.name), el("small", {}, device.label), el("em", {class: "room"}, said)),
      el("p", {class: "full"}, el("b", {}, bytesOf(device.peak, device.free)),
        ` of ${bytes(device.free)} at most`, device.at ? `, in ${device.at}` : ""),
      gauge(device, data), el("div", {class: "plot"}), el("output", {class: "read"}));
  }

  // So many cards beside each other that no row is left half empty.
  function laidOut(cards) {
    const wide = cards.length === 4 ? 2 : Math.min(3, cards.length);
    const last = wide - ((cards.length - 1) % wide);
    if (cards.length) cards[cards.length - 1].style.setProperty("--span", last);
    return el("div", {class: "devices", vars: {"--columns": wide}}, ...cards);
  }

  dovetail.memory = (section, data) => {
    const cards = data.devices.map((one) => card(one, data));
    const choices = [];
    if (data.picture) choices.push(["The whole picture", data.picture.devices, data.picture.marks, data.picture.seconds]);
    data.programs.forEach((one) => choices.push([`The first call of ${one.name}`, one.memory, null, one.call_seconds]));
    let chosen = 0;
    function draw() {
      POINTS.splice(0).forEach((plot) => plot.destroy());
      data.devices.forEach((device, index) => {
        const host = cards[index].querySelector(".plot"), columns = choices[chosen][1][device.name];
        host.replaceChildren();
        cards[index].classList.toggle("idle", !columns);
        if (columns && columns.x.length > 1) chart(host, device, columns, choices[chosen][3], choices[chosen][2]);
        else {
          host.append(el("p", {class: "none"}, "Nothing of it is on this device."));
          cards[index].querySelector("output").textContent = "";
        }
      });
    }
    const select = el("select", {"aria-label": "What the charts show", onchange: (event) => {
      chosen = Number(event.target.value);
      draw();
    }}, ...choices.map(([name], index) => el("option", {value: index}, name)));
    section.append(
      el("div", {class: "head"}, el("h2", {}, "Devices, and how full they get"), select),
      el("ul", {class: "legend"}, ...LAYERS.map(([, say], place) => el("li", {vars: {"--c": `var(--layer-${place})`}}, say)),
        el("li", {class: "dash"}, "may be used"),
        data.picture && axisOf(data.picture.marks, data.picture.seconds).isUneven
          ? el("li", {class: "said"}, "short calls are drawn longer than they take") : null),
      laidOut(cards));
    draw();
    dovetail.onTheme(draw);
  };
})();
