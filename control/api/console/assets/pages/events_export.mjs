// Exports events into a file, in the formats of `tollgate events export`.

import { openDialog } from "../dialog.mjs";
import { h, redraw } from "../dom.mjs";
import { csvLine } from "../files.mjs";
import { count, time } from "../format.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { remark } from "../notice.mjs";
import { EventReader } from "./events_reader.mjs";

const MOST = 200_000;
const FORMATS = {
  csv: { type: "text/csv", head: "timestamp,idempotency_key,request_id,model_slug,external_entity_id,api_key_prefix,input_tokens,output_tokens,cached_input_tokens\n", line: eventLine },
  jsonl: { type: "application/jsonl", head: "", line: (event) => `${JSON.stringify(event)}\n` },
};

/** Ask for the format, then read all pages and offer the file. */
export function exportEvents(filter) {
  const cancel = new AbortController();
  let file = ""; // the address of what was exported
  return openDialog("Export events", (close) => {
    const state = h("div", { role: "status" });
    const format = select("format", [["csv", "CSV"], ["jsonl", "JSON Lines"]]);
    const made = form("Export", field("Format", format, `Everything that the filter matches, oldest first; at most ${count(MOST)} events.`), () => run(format.value), {
      cancel: close,
    });

    async function run(name) {
      state.replaceChildren(h("p", {}, "Reading events …"));
      const { blob, found, hasMore, window } = await collected(filter, name, cancel.signal, (so_far) =>
        state.replaceChildren(h("p", {}, `${count(so_far)} events so far …`)),
      );
      URL.revokeObjectURL(file);
      file = URL.createObjectURL(blob);
      const link = h("a.button", { href: file, download: fileName(window, name) }, "Save the file");
      redraw(
        state,
        h("p", {}, `${count(found)} ${found === 1 ? "event" : "events"}, until `, time(window.end_time), "."),
        hasMore && remark("warn", h("p", {}, `There are more: this file ends after ${count(found)}. This command writes all of them, and goes on where it was interrupted:`), copyable(commandOf(filter, name), "Command")),
        h("p", {}, link),
      );
      link.click();
    }

    return h("div", {}, made, state);
  }).finally(() => {
    cancel.abort();
    setTimeout(() => URL.revokeObjectURL(file), 60_000); // a download may just have begun
  });
}

async function collected(filter, format, signal, progress) {
  const { type, head, line } = FORMATS[format];
  const reader = new EventReader(filter, 1000);
  let blob = new Blob([head], { type });
  let found = 0;
  while (!reader.isDone && found < MOST) {
    const events = (await reader.page(signal)).slice(0, MOST - found);
    blob = new Blob([blob, events.map(line).join("")], { type }); // the browser keeps what is done out of our memory
    found += events.length;
    progress(found);
  }
  return { blob, found, hasMore: !reader.isDone, window: reader.window };
}

function eventLine({ timestamp, idempotencyKey, requestId, modelSlug, externalEntityId, apiKeyPrefix, tokens }) {
  const texts = [timestamp, idempotencyKey, requestId, modelSlug, externalEntityId, apiKeyPrefix];
  return csvLine([...texts, tokens.inputTokens, tokens.outputTokens, tokens.cachedInputTokens]);
}

const fileName = (window, format) => `events-${window.start_time.slice(0, 10)}-${window.end_time.slice(0, 10)}.${format}`;

/** The command for the same events. It has no filter for slugs. */
function commandOf({ start_time, end_time, external_entity_ids, api_keys }, format) {
  const quoted = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
  const words = ["tollgate events export", "--since", start_time, ...(end_time ? ["--until", end_time] : [])];
  for (const one of external_entity_ids) words.push("--entity", quoted(one));
  for (const one of api_keys) words.push("--key", one);
  return [...words, "--format", format, "--output", `events.${format}`].join(" ");
}
