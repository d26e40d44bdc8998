"use strict";
// The time line of one call: a lane for each device, for loads to it, and for each link between two.
(() => {
  const {el, svg, seconds} = dovetail;
  const ROW = 24, AXIS = 22;

  function deviceOf(lane) { return lane.replace(/^loads to /, "").split(" to ")[0]; }

  // Draws the time from `from` to `to`: the keys + - 0 and dragging change what is seen, a double click shows all again.
  dovetail.lanes = (host, shown, from = 0, to = shown.seconds || 1) => {
    const width = Math.max(280, host.clientWidth), left = Math.min(130, width / 3), wide = width - left - 12;
    const height = shown.lanes.length * ROW + AXIS;
    const at = (time) => left + (wide * (Math.max(from, Math.min(to, time)) - from)) / (to - from);
    const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "group", class: "timeline",
      "aria-label": `Time line of one call, ${seconds(from)} to ${seconds(to)}; arrow keys go through it, + and - zoom`});
    const ticks = wide > 500 ? 5 : 2;
    for (let tick = 0; tick <= ticks; tick++) {
      const time = from + ((to - from) * tick) / ticks, x = at(time);
      picture.append(svg("line", {x1: x, x2: x, y1: 0, y2: height - AXIS + 4, class: "grid"}),
        svg("text", {x, y: height - 5, class: "axis", "text-anchor": tick === ticks ? "end" : tick ? "middle" : "start"}, seconds(time)));
    }
    shown.lanes.forEach((lane, row) => {
      picture.append(svg("text", {x: left - 10, y: row * ROW + 16, class: "lane", "text-anchor": "end"}, lane));
    });
    const marks = [];
    for (const [lane, start, end, what] of shown.spans) {
      if (end < from || start > to) continue;
      const name = shown.lanes[lane], link = name.includes(" to ");
      const node = svg("rect", {x: at(start), y: lane * ROW + 4, width: Math.max(1.5, at(end) - at(start)), height: ROW - 8,
        rx: 3, class: link ? "span link" : "span", vars: {"--c": dovetail.colour(deviceOf(name))}});
      marks.push({node, middle: (start + end) / 2, lines: () => [what, `${name}, from ${seconds(start)} to ${seconds(end)}`,
        `${seconds(end - start)} of ${seconds(shown.seconds)}`]});
      picture.append(node);
    }
    const chosen = dovetail.marks(picture, marks);
    zoomed(picture, {from, to, all: shown.seconds || 1, left, wide}, chosen, (...range) => dovetail.lanes(host, shown, ...range));
    host.replaceChildren(picture);
    return picture;
  };

  function zoomed(picture, {from, to, all, left, wide}, chosen, draw) {
    const within = (part) => Math.max(0, Math.min(1, part));
    const timeAt = (event) => from + (to - from) * within((event.clientX - picture.getBoundingClientRect().left - left) / wide);
    const show = (start, end) => {
      const least = all / 1e6, middle = (start + end) / 2, half = Math.max(least, end - start) / 2;
      return draw(Math.max(0, Math.min(middle - half, all - least)), Math.min(all, Math.max(middle + half, least)));
    };
    picture.addEventListener("keydown", (event) => {
      const factor = {"+": 0.5, "=": 0.5, "-": 2, "0": all / (to - from)}[event.key];
      if (!factor || event.ctrlKey || event.metaKey) return;
      const middle = event.key === "0" ? all / 2 : chosen() ? chosen().middle : (from + to) / 2, half = ((to - from) * factor) / 2;
      show(middle - half, middle + half).focus();
      event.preventDefault();
    });
    picture.addEventListener("pointerdown", (down) => {
      if (down.pointerType === "touch") return;  // which scrolls
      const start = timeAt(down);
      addEventListener("pointerup", (up) => {
        const end = timeAt(up);
        if (Math.abs(up.clientX - down.clientX) > 6) show(Math.min(start, end), Math.max(start, end));
      }, {once: true});
    });
    picture.addEventListener("dblclick", () => draw(0, all));
  }

  // How much of the call each lane is busy, as a table for those who do not see the picture.
  // Many links are told together, by the least and the most that one of them is busy.
  dovetail.busy = (shown) => {
    const parts = shown.lanes.map((lane, place) => [lane, Math.round((100 * shown.busy[place]) / (shown.seconds || 1))]).filter(([, part]) => part >= 1);
    const isLink = ([lane]) => !lane.startsWith("loads to ") && lane.includes(" to "), links = parts.filter(isLink);
    const many = links.length > 4, [least, most] = [Math.min, Math.max].map((pick) => pick(...links.map(([, part]) => part)));
    const said = (many ? parts.filter((one) => !isLink(one)) : parts).map(([lane, part]) => `${lane} ${part} %`);
    if (many) said.push(`each of ${links.length} links ${least === most ? most : `${least}–${most}`} %`);
    return el("p", {class: "note"}, "Busy: ", said.join(", ") || "nothing", " of the time. Drag over the time line, or press + and - on it, to zoom; a double click shows all of it.");
  };
})();
