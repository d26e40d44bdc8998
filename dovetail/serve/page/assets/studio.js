"use strict";
// Puts the page together: paints what the form says, and asks how the server is.
(() => {
  const byId = (id) => document.getElementById(id), root = document.documentElement;
  const {ask, form, stage, side} = dovetail;
  const EVERY = 1000, AWAY = 5000;
  let painting = null, isFitted = false;

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });

  function unlock() {
    const dialog = byId("locked");
    byId("wrong").hidden = !ask.key;
    if (!dialog.open) dialog.showModal();
    return new Promise((done) => dialog.addEventListener("close", () => { ask.remember(byId("key").value); done(); }, {once: true}));
  }

  async function look() {
    try {
      const state = await ask.json("/api/state");
      if (!isFitted) { form.fit(state); isFitted = true; }
      byId("title").textContent = state.model;
      byId("up").textContent = `up for ${dovetail.seconds(state.up)}`;
      side.devices(state.devices);
      side.queue(state.queue);
      root.dataset.ready = "";
    } catch (error) {
      if (error.status === 401) await unlock();
      else byId("title").textContent = `not reached: ${error.message}`;
    }
    setTimeout(look, document.hidden ? AWAY : EVERY);
  }

  const handle = {
    queued: (told) => stage.say(told.before ? `waits behind ${told.before} ${told.before > 1 ? "jobs" : "job"}` : "begins …"),
    step: (told, asked) => {
      stage.part(told.of ? told.step / told.of : 0);
      stage.say(told.step < told.of ? `step ${told.step} of ${told.of} · ${told.seconds} s` : `decoding · ${told.seconds} s`);
    },
    preview: (told, asked) => stage.preview(told.picture, asked.width),
    done: (told, asked) => {
      const until = Date.now() + 1000 * told.kept;
      const made = told.pictures.map((one) => ({...one, prompt: told.prompt, width: told.width, height: told.height,
        seconds: told.seconds / told.pictures.length, until, asked: {...asked, image: undefined, mask: undefined}}));
      stage.pictures(made);
      stage.say(side.told(made[0]));
      side.add(made);
    },
    error: (told) => { throw new Error(told.message); },
  };

  async function paint() {
    if (painting || !byId("form").reportValidity()) return;
    painting = new AbortController();
    show(true);
    stage.none("…");
    stage.part(0);
    let isDone = false;
    try {
      const asked = await form.read();
      for await (const [name, told] of ask.events("/api/generate", asked, painting.signal)) {
        if (handle[name]) handle[name](told, asked);
        isDone = isDone || name === "done";
      }
      if (!isDone) throw new Error("the server ended before the picture was done");
    } catch (error) {
      stopped(error);
    } finally {
      painting = null;
      stage.part(null);
      show(false);
    }
  }

  function stopped(error) {
    const isMine = error.name === "AbortError";
    stage.none(isMine ? "Stopped." : "No picture.");
    stage.say("");
    byId("problem").textContent = isMine ? "" : error.message + (error.after ? ` (in about ${error.after} s there is room)` : "");
    byId("problem").hidden = isMine;
  }

  function show(isPainting) {
    byId("paint").disabled = isPainting;
    byId("stop").hidden = !isPainting;
    if (isPainting) byId("problem").hidden = true;
  }

  const stop = () => painting && painting.abort();
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); paint(); });
  byId("stop").addEventListener("click", stop);
  byId("forget").addEventListener("click", side.forget);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); paint(); }
    if (event.key === "Escape" && !byId("locked").open) stop();
  });

  side.history();
  look();
})();
