"use strict";
// Small helpers. Text from data is only ever set as text: nothing here parses HTML.
const dovetail = {};
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
      else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((one) => one != null && one !== false));
    return element;
  }
  dovetail.el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
  dovetail.svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
  dovetail.json = (id) => JSON.parse(document.getElementById(id).textContent);

  dovetail.bytes = (size) => {
    for (const [name, unit] of UNITS) if (Math.abs(size) >= unit) return `${(size / unit).toFixed(1)} ${name}`;
    return `${Math.round(size)} B`;
  };
  dovetail.seconds = (time) => {
    if (time >= 100) return `${Math.round(time)} s`;
    if (time >= 1) return `${time.toPrecision(3)} s`;
    if (time >= 1e-3) return `${(time * 1e3).toPrecision(3)} ms`;
    return time > 0 ? `${(time * 1e6).toPrecision(3)} µs` : "0 s";
  };
  // A time in the unit that suits the whole of which it is a part.
  dovetail.secondsOf = (time, whole) => {
    const [unit, scale] = whole >= 1 ? ["s", 1] : whole >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
    return `${(time * scale).toLocaleString("en", {maximumSignificantDigits: 3})} ${unit}`;
  };
  // Titles of which those that several have say which one of them each is.
  dovetail.apart = (titles) => {
    const all = new Map(), seen = new Map();
    titles.forEach((one) => all.set(one, (all.get(one) || 0) + 1));
    return titles.map((one) => {
      seen.set(one, (seen.get(one) || 0) + 1);
      return all.get(one) > 1 ? `${one} (${seen.get(one)} of ${all.get(one)})` : one;
    });
  };
  // A size in the unit that suits the whole of which it is a part, so that both can be compared at a glance.
  dovetail.bytesOf = (size, whole) => {
    const [name, unit] = UNITS.find(([, one]) => whole >= one) || ["B", 1], part = size / unit;
    return `${unit === 1 ? size : part.toFixed(Math.abs(part) < 1 && part ? 2 : 1)} ${name}`;
  };
  // How full a device gets, in a word and a sentence.
  dovetail.room = (device) => {
    const left = device.free - device.peak, part = device.free ? device.peak / device.free : device.peak ? Infinity : 0;
    const size = dovetail.bytesOf(Math.abs(left), Math.max(device.free, device.peak));
    if (left < 0) return {level: "over", part, said: `${size} too much`};
    return {level: part >= 0.95 ? "tight" : "", part, said: `${part >= 0.95 ? "full, " : ""}${size} to spare`};
  };
  dovetail.count = (number) => number.toLocaleString("en");
  dovetail.several = (number, noun) => `${dovetail.count(number)} ${noun}${number === 1 ? "" : "s"}`;

  // The colour of a device, by its number on the page; the host is grey.
  dovetail.colour = (name) => {
    const found = dovetail.devices.indexOf(name);
    return name === "cpu" ? "var(--host)" : `var(--device-${(found < 0 ? 0 : found) % 8})`;
  };
  dovetail.chip = (name) => dovetail.el("span", {class: "chip", vars: {"--c": dovetail.colour(name)}}, name);
  dovetail.chips = (place) => place.split(" & ").map(dovetail.chip);

  const tip = document.getElementById("tip");
  dovetail.tell = (lines, event) => {
    tip.replaceChildren(...lines.map((line, index) => dovetail.el(index ? "div" : "b", {}, line)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const top = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  dovetail.hush = () => { tip.hidden = true; };

  // What a picture shows can be pointed at; the tab key stops at the picture, and arrow keys go from mark to mark in it.
  // A mark is {node, lines, open}: what is drawn, a function that gives the text on it, and what Enter or a click does.
  dovetail.marks = (picture, marks) => {
    let now = -1;
    const leave = () => { if (now >= 0) marks[now].node.classList.remove("now"); dovetail.hush(); };
    const go = (index) => {
      leave();
      now = Math.max(0, Math.min(marks.length - 1, index));
      const {node, lines} = marks[now], box = node.getBoundingClientRect();
      node.classList.add("now");
      dovetail.tell(lines(), {clientX: box.left + box.width / 2, clientY: box.bottom - 12});
    };
    for (const {node, lines, open} of marks) {
      node.addEventListener("pointermove", (event) => dovetail.tell(lines(), event));
      node.addEventListener("pointerleave", dovetail.hush);
      if (open) node.addEventListener("click", open);
    }
    picture.setAttribute("tabindex", "0");
    picture.addEventListener("blur", leave);
    picture.addEventListener("keydown", (event) => {
      const to = {ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: marks.length - 1}[event.key];
      if (to !== undefined && marks.length) { go(to); event.preventDefault(); }
      if ((event.key === "Enter" || event.key === " ") && now >= 0 && marks[now].open) { marks[now].open(); event.preventDefault(); }
      if (event.key === "Escape") leave();
    });
    return () => (now < 0 ? null : marks[now]);
  };

  // A row of buttons of which one is chosen; arrow keys go from one to the next.
  dovetail.tabs = (label, names, choose) => {
    const buttons = names.map((name, index) => dovetail.el("button", {
      type: "button", role: "tab", onclick: () => pick(index), title: name,
    }, name));
    function pick(index, focus) {
      buttons.forEach((one, place) => {
        one.setAttribute("aria-selected", String(place === index));
        one.tabIndex = place === index ? 0 : -1;
      });
      if (focus) buttons[index].focus();
      choose(index);
    }
    const list = dovetail.el("div", {class: "tabs", role: "tablist", "aria-label": label, onkeydown: (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      const now = buttons.indexOf(document.activeElement);
      if (step && now >= 0) { pick((now + step + buttons.length) % buttons.length, true); event.preventDefault(); }
    }}, ...buttons);
    return {list, pick};
  };
})();
