"use strict";
// The time line of one call: a lane for each device, for loads to it, and for each link between two.
(() => {
  const {el, svg, seconds} = dovetail;
  const ROW = 24, AXIS = 22;

  function deviceOf(lane) { return lane.replace(/^loads to /, "").split(" to ")[0]; }

  dovetail.lanes = (host, shown) => {
    const width = Math.max(280, host.clientWidth), left = Math.min(130, width / 3), wide = width - left - 12;
    const height = shown.lanes.length * ROW + AXIS;
    const at = (time) => left + (wide * time) / (shown.seconds || 1);
    const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Time line of one call, ${seconds(shown.seconds)}`});
    const ticks = wide > 500 ? 5 : 2;
    for (let tick = 0; tick <= ticks; tick++) {
      const x = at((shown.seconds * tick) / ticks);
      picture.append(svg("line", {x1: x, x2: x, y1: 0, y2: height - AXIS + 4, class: "grid"}),
        svg("text", {x, y: height - 5, class: "axis", "text-anchor": tick === ticks ? "end" : tick ? "middle" : "start"},
          seconds((shown.seconds * tick) / ticks)));
    }
    shown.lanes.forEach((lane, row) => {
      picture.append(svg("text", {x: left - 10, y: row * ROW + 16, class: "lane", "text-anchor": "end"}, lane));
    });
    for (const [lane, start, end, what] of shown.spans) {
      const name = shown.lanes[lane], link = name.includes(" to ");
      const box = svg("rect", {x: at(start), y: lane * ROW + 4, width: Math.max(1.5, at(end) - at(start)), height: ROW - 8,
        rx: 3, class: link ? "span link" : "span", vars: {"--c": dovetail.colour(deviceOf(name))}});
      box.addEventListener("pointermove", (event) => dovetail.tell(
        [what, `${name}, from ${seconds(start)} to ${seconds(end)}`, `${seconds(end - start)} of ${seconds(shown.seconds)}`], event));
      box.addEventListener("pointerleave", dovetail.hush);
      picture.append(box);
    }
    host.replaceChildren(picture);
  };

  // How much of the call each lane is busy, as a table for those who do not see the picture.
  dovetail.busy = (shown) => {
    return el("p", {class: "note"}, "Busy: ", shown.lanes.map((lane, place) =>
      [lane, Math.round((100 * shown.busy[place]) / (shown.seconds || 1))]).filter(([, part]) => part >= 1)
      .map(([lane, part]) => `${lane} ${part} %`).join(", ") || "nothing", " of the time.");
  };
})();
