"use strict";
// Memory over time as stacked areas, with what may be used of the device as a line.
(() => {
  const {el, bytes, seconds} = dovetail;
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
    for (const [name, , start, end, times] of marks) {
      const left = self.valToPos(start, "x", true), right = self.valToPos(end, "x", true);
      const said = times > 1 ? `${name} × ${times}` : name;
      if (left < bbox.left - 1 || left > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      if (ctx.measureText(said).width + 8 * ratio < right - left) ctx.fillText(said, left + 4 * ratio, bbox.top - 4 * ratio);
    }
    ctx.restore();
  }

  function chart(host, device, columns, end, marks) {
    const tops = stacked(columns);
    const most = Math.max(...tops[LAYERS.length - 1], 1);
    const shown = Math.max(most, device.free <= most * 4 ? device.free : 0) * 1.08;
    const budget = columns.x.map(() => device.free);
    const step = uPlot.paths.stepped({align: 1});
    // Highest layer first, each from the ground: the ones below are drawn over it.
    const order = LAYERS.map((_, place) => LAYERS.length - 1 - place);
    const area = (place) => ({
      stroke: css(`--layer-${place}`), fill: css(`--layer-${place}`), width: 0.5, paths: step, points: {show: false},
    });
    const axis = (more) => ({
      stroke: css("--dim"), grid: {stroke: css("--line"), width: 1}, ticks: {show: false}, font: "11px system-ui", ...more,
    });
    const plot = new uPlot({
      width: host.clientWidth || 600, height: 168, legend: {show: false}, padding: [marks ? 18 : 8, 8, 0, 0],
      cursor: {y: false, points: {show: false}, drag: {x: true, y: false}, sync: {key: "memory"}},
      scales: {x: {time: false, range: (_, low, high) => (high > low ? [low, high] : [0, end])}, y: {range: [0, shown]}},
      axes: [
        axis({values: (_, ticks) => ticks.map((one) => seconds(one)), size: 20, gap: 3, space: 70}),
        axis({values: (_, ticks) => ticks.map((one) => (one ? bytes(one) : "0")), size: 74, space: 34,
              incrs: Array.from({length: 60}, (_, power) => 2 ** power)}),
      ],
      series: [{}, ...order.map(area), {stroke: css("--bad"), width: 1.5, dash: [5, 4], points: {show: false}}],
      hooks: {setCursor: [(self) => read(self.cursor.idx)], draw: marks ? [(self) => marked(self, marks)] : []},
    }, [columns.x, ...order.map((place) => tops[place]), budget], host);
    const out = host.parentElement.querySelector("output");
    function read(place) {
      if (place == null) { out.textContent = ""; return; }
      const parts = LAYERS.filter(([name]) => columns[name][place]).map(([name, say]) => `${say} ${bytes(columns[name][place])}`);
      out.textContent = `${seconds(columns.x[place])}: ${bytes(tops[LAYERS.length - 1][place])} = ${parts.join(" + ") || "nothing"}`;
    }
    new ResizeObserver(() => { if (host.clientWidth) plot.setSize({width: host.clientWidth, height: 168}); }).observe(host);
    POINTS.push(plot);
  }

  function gauge(device) {
    const total = device.total || device.peak || 1;
    const part = (size, layer) => el("i", {vars: {width: `${(100 * size) / total}%`, background: `var(--layer-${layer})`}});
    return el("div", {class: "gauge", role: "img", "aria-label": `${bytes(device.peak)} of ${bytes(device.free)}`},
      part(device.weights, 0), part(device.staged, 1), part(device.values, 3),
      el("u", {vars: {left: `${Math.min(100, (100 * device.free) / total)}%`}, title: `may use ${bytes(device.free)}`}));
  }

  function card(device) {
    const over = device.peak > device.free;
    return el("article", {class: "card device"},
      el("h3", {}, dovetail.chip(device.name), el("small", {}, device.label)),
      el("p", {class: over ? "full over" : "full"}, el("b", {}, bytes(device.peak)),
        ` of ${bytes(device.free)} at its fullest`, device.at ? `, in ${device.at}` : ""),
      gauge(device), el("div", {class: "plot"}), el("output", {class: "read"}));
  }

  dovetail.memory = (section, data) => {
    const cards = data.devices.map(card);
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
        else host.append(el("p", {class: "none"}, "Nothing of it is on this device."));
      });
    }
    const select = el("select", {"aria-label": "What the charts show", onchange: (event) => {
      chosen = Number(event.target.value);
      draw();
    }}, ...choices.map(([name], index) => el("option", {value: index}, name)));
    section.append(
      el("div", {class: "head"}, el("h2", {}, "Devices, and how full they get"), select),
      el("ul", {class: "legend"}, ...LAYERS.map(([, say], place) => el("li", {vars: {"--c": `var(--layer-${place})`}}, say)),
        el("li", {class: "dash"}, "may be used")),
      el("div", {class: "devices"}, ...cards));
    draw();
    dovetail.onTheme(draw);
  };
})();
