// Follows events: each new one once, as consecutive windows of the API show them.

import { h, redraw } from "../dom.mjs";
import { count, time } from "../format.mjs";
import { keepFresh } from "../live.mjs";
import { nothing } from "../notice.mjs";
import { EventReader } from "./events_reader.mjs";

const EVERY_S = 3;
const BEFORE_MS = 120_000; // so far back it begins
const MOST_SHOWN = 300;
const MOST_PAGES = 10; // of one load: the next goes on

/** Draw events into `container` as they become final, the newest on top. `draw(events)` makes their table. */
export function followEvents(container, filter, draw) {
  const list = h("div", {}, nothing("No event yet. Calls appear here once they are final."));
  const state = h("div");
  container.append(
    h("p.soft", {}, "An event appears about a minute after its call ended: then it is final (", h("code", {}, "TOLLGATE_EVENT_HOLDBACK_S"), "). Each appears once; the newest is on top."),
    state,
    list,
  );
  const begin = { ...filter, start_time: new Date(Date.now() - BEFORE_MS).toISOString(), end_time: null };
  let reader = new EventReader(begin, 1000);
  let shown = [];
  let seen = 0;

  async function load() {
    for (let at = 0; at < MOST_PAGES; at += 1) {
      const events = await reader.page();
      seen += events.length;
      if (events.length) {
        shown = [...events.reverse(), ...shown].slice(0, MOST_SHOWN);
        redraw(list, draw(shown));
      }
      if (reader.isDone) {
        reader = new EventReader({ ...begin, start_time: later(reader.window) }, 1000);
        break;
      }
    }
    return reader.filter.start_time;
  }

  keepFresh(state, EVERY_S, load, (until) =>
    h("p", {}, `${count(seen)} ${seen === 1 ? "event" : "events"}, final until `, time(until), ".", seen > MOST_SHOWN && ` The newest ${MOST_SHOWN} are shown.`),
  );
}

/** Where the next window begins. The API answers an empty one that ends before it starts when nothing is final yet. */
const later = ({ start_time, end_time }) => (Date.parse(end_time) > Date.parse(start_time) ? end_time : start_time);
