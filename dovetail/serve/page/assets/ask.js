"use strict";
// What the page asks of its server: always the same origin, with the key where the server wants one.
(() => {
  const STORED = "dovetail key";
  const ask = (dovetail.ask = {});
  ask.key = sessionStorage.getItem(STORED) || "";

  ask.headers = () => ({"X-Dovetail-Page": "1", ...(ask.key ? {Authorization: `Bearer ${ask.key}`} : {})});
  ask.remember = (key) => { ask.key = key; sessionStorage.setItem(STORED, key); };

  // The JSON of an address; an error has the status that was answered.
  ask.json = async (path) => {
    const answer = await fetch(path, {headers: ask.headers(), cache: "no-store"});
    if (!answer.ok) throw await problem(answer);
    return answer.json();
  };

  // Sends a body, and gives each event of the answer as [name, what it says].
  ask.events = async function* (path, body, signal) {
    const headers = {...ask.headers(), "Content-Type": "application/json"};
    const answer = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal});
    if (!answer.ok) throw await problem(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const [, name, data] = part.match(/^event: (\S+)\ndata: (.*)$/s) || [];
        if (name) yield [name, JSON.parse(data)];
      }
    }
  };

  async function problem(answer) {
    const told = await answer.json().catch(() => ({}));
    const error = new Error((told.error && told.error.message) || told.detail || `the server answered ${answer.status}`);
    error.status = answer.status;
    error.after = Number(answer.headers.get("Retry-After")) || 0;
    return error;
  }
})();
