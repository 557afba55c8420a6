// "Share usage page": a signed, expiring address of a page that shows one group's usage, to open or to embed.

import { route, send } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { time } from "../format.mjs";

const EXPIRIES = [["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"], ["2592000", "30 days"]];

/** Ask for expiry and origins, create the link, show it once. */
export function shareUsagePage(group) {
  return openDialog("Share usage page", (close) => {
    const place = h("div");
    const expiry = select("expires_in_s", EXPIRIES, "3600");
    const origins = h("textarea", { name: "frame_origins", rows: 3, spellcheck: "false", placeholder: "https://portal.example" });
    const asked = form(
      "Create the link",
      [
        h("p", {}, "Whoever has the link sees the usage, limits and key names of ", h("bdi", {}, group.metadata.external_entity_id), ", and nothing else. Revoking the key that you are logged in with ends it."),
        field("Valid for", expiry),
        field("Origins that may embed it", origins, "One a line, at most 8. Without any, the page opens only on its own."),
      ],
      async () => {
        const frame_origins = origins.value.split(/\s+/).filter(Boolean);
        const made = await send("POST", route`/v1/gateway/groups/${group.id}/usage_links`, { expires_in_s: Number(expiry.value), frame_origins });
        place.replaceChildren(...shown(made, frame_origins, close));
      },
      { cancel: () => close() },
    );
    place.append(asked);
    return place;
  });
}

function shown(made, origins, close) {
  return [
    h("p", {}, h("strong", {}, "Copy it now; it is shown once."), " It ends ", time(made.expires_at), "."),
    copyable(made.url, "The link"),
    ...(origins.length ? [h("p", {}, `To embed it in pages of ${origins.join(", ")}:`), copyable(frameOf(made.url), "HTML that embeds it")] : []),
    h("p.actions", {}, h("button.primary", { type: "button", onclick: () => close() }, "I have stored it")),
  ];
}

function frameOf(url) {
  const quoted = url.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  return `<iframe src="${quoted}" title="Usage" width="100%" height="900" loading="lazy"></iframe>`;
}
