"use strict";
// What was made, what waits, and how full the devices are.
(() => {
  const byId = (id) => document.getElementById(id), el = dovetail.el;
  const side = (dovetail.side = {});
  const STORED = "dovetail history", MOST = 60;

  const kept = () => {
    try {
      return JSON.parse(localStorage.getItem(STORED) || "[]").filter((one) => one.until > Date.now());
    } catch { return []; }
  };

  side.add = (made) => {
    localStorage.setItem(STORED, JSON.stringify([...made, ...kept()].slice(0, MOST)));
    side.history();
  };
  side.forget = () => { localStorage.removeItem(STORED); side.history(); };

  side.history = () => {
    const all = kept();
    byId("nothing").hidden = byId("forget").hidden = true;
    byId(all.length ? "forget" : "nothing").hidden = false;
    byId("made").replaceChildren(...all.map((one) => {
      const image = el("img", {src: one.url, alt: "", loading: "lazy"});
      const open = () => { dovetail.stage.pictures([one]); dovetail.stage.say(told(one)); dovetail.form.write(one.asked, one.seed); byId("make").scrollIntoView(); };
      const button = el("button", {type: "button", onclick: open, title: told(one), "aria-label": `Show again: ${told(one)}`}, image, el("span", {}, one.prompt || "no prompt"));
      const item = el("li", {}, button);
      image.addEventListener("error", () => item.remove());
      return item;
    }));
  };

  const told = (one) => `${one.prompt} · ${one.width} × ${one.height} · seed ${one.seed} · ${dovetail.seconds(one.seconds)}`;
  side.told = told;

  side.devices = (devices) => {
    dovetail.devices = [...new Set(devices.map((one) => one.name))];
    byId("devices").replaceChildren(...devices.map((one) => device(one, devices.some((other) => other.painter))));
    byId("legend").hidden = !devices.length;
  };

  function device(one, several) {
    const whole = Math.max(one.free, one.peak, one.planned, 1), at = (size) => `${(100 * size) / whole}%`;
    const meter = el("div", {class: "meter", role: "img", "aria-label": `${dovetail.bytes(one.used)} in use of ${dovetail.bytes(one.free)}`, vars: {"--c": dovetail.colour(one.name)}});
    const used = el("i"), planned = el("b"), peak = el("u");
    used.style.width = at(one.used);
    planned.style.width = at(one.planned);
    peak.style.left = at(one.peak);
    meter.append(used, ...(one.planned ? [planned] : []), ...(one.peak ? [peak] : []));
    const where = one.name === "cpu" ? "this process on the host" : several ? `replica ${one.painter + 1}` : "";
    const facts = [["in use", one.used], ["most so far", one.peak],
      ...(one.planned ? [["planned", one.planned]] : []), ["may be used", one.free]];
    return el("div", {class: "card device"}, el("h3", {}, dovetail.chip(one.name), el("small", {}, where)), meter,
      el("p", {}, facts.map(([name, size]) => `${size ? dovetail.bytes(size) : "–"} ${name}`).join(" · ")));
  }

  side.queue = (queue) => {
    const rows = queue.jobs.map((one) => el("li", {},
      el("b", {}, one.state === "running" ? "painting" : "waiting"),
      el("span", {}, one.width && one.height ? `${one.width} × ${one.height}` : "usual size"),
      one.count > 1 ? el("span", {}, `${one.count} pictures`) : null,
      one.of ? el("span", {}, `step ${one.step} of ${one.of}`) : null,
      el("span", {}, `${one.seconds} s`)));
    byId("queue").replaceChildren(...(rows.length ? rows : [el("li", {}, el("span", {}, `Nothing waits; ${queue.most} jobs may.`))]));
  };
})();
