"use strict";
// The picture: how far it is, what there is of it, and what it became.
(() => {
  const byId = (id) => document.getElementById(id), el = dovetail.el;
  const stage = (dovetail.stage = {});
  const canvas = byId("canvas"), track = document.querySelector(".track"), fill = track.querySelector("i");
  const SMALL = 200;

  stage.say = (text) => { byId("status").textContent = text; };
  stage.none = (text) => canvas.replaceChildren(el("p", {class: "none"}, text));
  stage.part = (part) => {
    track.hidden = part === null;
    fill.style.width = `${100 * (part || 0)}%`;
  };

  const seen = (image) => { if (image.naturalWidth <= SMALL) image.classList.add("small"); };

  stage.preview = (picture, width) => {
    const shown = canvas.querySelector("img.preview") || el("img", {class: "preview small", alt: "The picture so far"});
    shown.src = `data:image/jpeg;base64,${picture}`;
    if (width) shown.width = width;
    if (!shown.isConnected) canvas.replaceChildren(shown);
  };

  stage.pictures = (made) => canvas.replaceChildren(...made.map((one) => {
    const image = el("img", {alt: one.prompt || "a picture", src: one.url});
    image.addEventListener("load", () => seen(image));
    image.addEventListener("error", () => stage.none("This picture is not kept any more: paint it again."));
    return el("a", {href: one.url, target: "_blank", rel: "noopener", download: `dovetail-${one.seed}.png`, title: "Save this picture"}, image);
  }));
})();
