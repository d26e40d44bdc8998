"use strict";
// The form: what is to be painted. A field that is empty is as the model has it.
(() => {
  const byId = (id) => document.getElementById(id), el = dovetail.el;
  const form = (dovetail.form = {});
  const chosen = new Map();
  const NUMBERS = {width: "width", height: "height", steps: "steps", count: "count", guidance: "guidance", seed: "seed", strength: "strength"};

  // What the server knows of its model: sizes, LoRAs, and what a picture may begin with.
  form.fit = (state) => {
    for (const name of ["width", "height", "steps"]) byId(name).placeholder = state.defaults[name] || "as the model has it";
    for (const name of ["width", "height"]) byId(name).max = state.bounds.side;
    byId("steps").max = state.bounds.steps;
    byId("count").max = state.bounds.count;
    byId("begin").hidden = !state.tasks.includes("image");
    byId("with-mask").hidden = !state.tasks.includes("mask");
    byId("loras").hidden = !state.loras.length;
    byId("loras").replaceChildren("LoRAs", ...state.loras.map(lora));
  };

  function lora(name) {
    const scale = el("input", {type: "number", step: "any", value: "1", "aria-label": `Scale of ${name}`});
    const box = el("input", {type: "checkbox"});
    chosen.set(name, () => (box.checked ? Number(scale.value) : null));
    return el("div", {class: "lora"}, el("label", {}, box, " ", name), el("span"), scale);
  }

  form.read = async () => {
    const asked = {prompt: byId("prompt").value};
    if (byId("negative").value.trim()) asked.negative_prompt = byId("negative").value;
    for (const [id, name] of Object.entries(NUMBERS)) if (byId(id).value !== "") asked[name] = Number(byId(id).value);
    const loras = [...chosen].map(([name, scale]) => [name, scale()]).filter(([, scale]) => scale !== null);
    if (loras.length) asked.loras = Object.fromEntries(loras);
    for (const name of ["image", "mask"]) {
      const file = byId(name).files[0];
      if (file) asked[name] = await base64(file);
    }
    if (!asked.image) delete asked.strength;
    return asked;
  };

  // Puts what was asked once back into the form, with the seed that was taken.
  form.write = (asked, seed) => {
    byId("prompt").value = asked.prompt;
    byId("negative").value = asked.negative_prompt || "";
    for (const [id, name] of Object.entries(NUMBERS)) byId(id).value = asked[name] ?? "";
    byId("count").value = 1;
    byId("seed").value = seed;
  };

  function base64(file) {
    return new Promise((give, fail) => {
      const reader = new FileReader();
      reader.onload = () => give(reader.result);
      reader.onerror = () => fail(new Error(`cannot read ${file.name}`));
      reader.readAsDataURL(file);
    });
  }

  byId("any").addEventListener("click", () => { byId("seed").value = ""; byId("seed").focus(); });
})();
