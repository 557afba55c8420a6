// The shell: xterm.js, and one WebSocket beside this page's address. Binary messages are what was typed and what the
// shell wrote. Text messages to the shell: {"type": "resize", "columns", "rows"} and {"type": "read", "bytes"}, by which
// a shell that prints without end waits for this page.
import { Terminal } from "./xterm.mjs";

const CONFIRM_BYTES = 65536;
const TYPED_BYTES = 16384; // in one message; a long paste is sent in several
const SCROLLBAR_PX = 14;
const MAX_CELLS = 1000;
const SESSION_OVER = 4001;

const place = document.getElementById("terminal");
const notice = document.getElementById("notice");
const terminal = new Terminal({ cursorBlink: true, scrollback: 5000 });
const url = new URL(`${location.pathname}/terminal`, location.href);
url.protocol = url.protocol === "https:" ? "wss:" : "ws:";

const socket = new WebSocket(url);
socket.binaryType = "arraybuffer";
const encoder = new TextEncoder();
let unconfirmed = 0;

function tell(text) {
  notice.textContent = text;
  notice.hidden = false;
}

function send(message) {
  if (socket.readyState === WebSocket.OPEN) socket.send(message);
}

function type(bytes) {
  for (let start = 0; start < bytes.length; start += TYPED_BYTES) send(bytes.slice(start, start + TYPED_BYTES));
}

function confirm(bytes) {
  unconfirmed += bytes;
  if (unconfirmed < CONFIRM_BYTES) return;
  send(JSON.stringify({ type: "read", bytes: unconfirmed }));
  unconfirmed = 0;
}

function cells(available, used, count) {
  return Math.max(2, Math.min(MAX_CELLS, Math.floor(available / (used / count))));
}

function fit() {
  const screen = place.querySelector(".xterm-screen");
  if (!screen || !screen.clientWidth || !screen.clientHeight) return;
  const columns = cells(place.clientWidth - SCROLLBAR_PX, screen.clientWidth, terminal.cols);
  terminal.resize(columns, cells(place.clientHeight, screen.clientHeight, terminal.rows));
}

function announceSize() {
  send(JSON.stringify({ type: "resize", columns: terminal.cols, rows: terminal.rows }));
}

terminal.open(place);
terminal.focus();
terminal.onData((text) => type(encoder.encode(text)));
terminal.onBinary((text) => type(Uint8Array.from(text, (character) => character.charCodeAt(0))));
terminal.onResize(announceSize);
new ResizeObserver(fit).observe(place);

socket.addEventListener("open", () => {
  fit();
  announceSize();
});
socket.addEventListener("message", (event) => {
  const written = new Uint8Array(event.data);
  terminal.write(written, () => confirm(written.length));
});
socket.addEventListener("close", (event) => {
  terminal.options.disableStdin = true;
  tell(`${event.reason || "The connection was lost."}${event.code === SESSION_OVER ? "" : " Reload the page for a new shell."}`);
});
