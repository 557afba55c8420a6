// The prepaid balance of a group: what is left, its last entries, and the form of a credit.

import { read, route, send } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton, field, form } from "../form.mjs";
import { count, time } from "../format.mjs";
import { keepFresh } from "../live.mjs";
import { announce, nothing, problemNotice } from "../notice.mjs";
import { pagedList, table } from "../table.mjs";
import { groupLink } from "./groups_data.mjs";

const REFRESH_S = 3;
const ENTRIES = 10;
const KINDS = { CREDIT: "credit", DRAW: "calls" };
const pathOf = (group) => route`/v1/gateway/groups/${group.id}/balance`;

const FIGURES = [
  { head: "Currency", cell: (balance) => balance.currency },
  { head: "Credited", number: true, cell: (balance) => balance.credited },
  { head: "Spent", number: true, cell: (balance) => balance.spent },
  { head: "Calls in flight", number: true, cell: (balance) => balance.reserved },
  { head: "Available", number: true, cell: (balance) => balance.available },
];
const LEDGER = [
  { head: "Time", cell: (entry) => time(entry.timestamp) },
  { head: "Entry", cell: (entry) => KINDS[entry.type] ?? entry.type },
  { head: "Amount", number: true, cell: (entry) => `${entry.amount} ${entry.currency}` },
  { head: "Slug", cell: (entry) => (entry.slug === null ? "–" : h("code", {}, entry.slug)) },
  { head: "Calls", number: true, cell: (entry) => (entry.calls === null ? "–" : count(entry.calls)) },
  { head: "Reference", cell: (entry) => (entry.reference === null ? "–" : h("bdi", {}, entry.reference)) },
  { head: "Note", cell: (entry) => (entry.note === null ? "–" : h("bdi", {}, entry.note)) },
];

/** The element of the group's balance. `ancestors`: the groups above, the parent first. */
export function drawBalance(group, ancestors) {
  const place = h("div");
  let refresh = null; // once a balance is shown
  let currency = [...group.effective_spend_limits, ...group.spend_limits][0]?.currency ?? "";

  function show() {
    const figures = h("div");
    const fresh = keepFresh(figures, REFRESH_S, () => read(pathOf(group)), (balance) => {
      currency = balance.currency;
      return table("Prepaid balance", FIGURES, [balance]);
    });
    const entries = pagedList(`${pathOf(group)}/entries`, () => ({ limit: ENTRIES }), (items) => table("Entries of the balance", LEDGER, items), "No entries.");
    place.replaceChildren(figures, h("h3", {}, "Last entries"), entries.element);
    entries.reload();
    refresh = () => (fresh.now(), entries.reload());
  }

  async function begin() {
    try {
      if (await hasBalance(group)) return show();
      place.replaceChildren(await drawnInstead(ancestors));
    } catch (error) {
      place.replaceChildren(problemNotice(error));
    }
  }

  begin();
  const credit = async () => {
    if (!(await askCredit(group, currency))) return;
    if (refresh) refresh();
    else show();
  };
  return h("section", {}, place, h("p.actions", {}, actionButton("Add a credit", credit, { needs: "credits" })));
}

/** Whether the group has a balance of its own: its first credit is an entry. */
const hasBalance = async (group) => (await read(`${pathOf(group)}/entries`, { limit: 1 })).items.length > 0;

/** What to say of a group without a balance: which one its calls draw from, if any. */
async function drawnInstead(ancestors) {
  for (const one of ancestors) {
    if (await hasBalance(one)) return h("p", {}, "Calls draw from the balance of ", groupLink(one), ".");
  }
  return nothing("No prepaid balance. The first credit makes one: from then on, calls are refused when nothing is left.");
}

/** Ask for a credit and make it. Answers whether it was made. */
function askCredit(group, currency) {
  return openDialog("Add a credit", (close) => {
    const amount = h("input", { name: "amount", required: true, autocomplete: "off", inputmode: "decimal", placeholder: "100.00" });
    const unit = h("input", { name: "currency", required: true, autocomplete: "off", maxlength: 3, placeholder: "EUR", value: currency });
    const reference = h("input", { name: "reference", required: true, autocomplete: "off", maxlength: 255, placeholder: "INV-2026-1" });
    const note = h("input", { name: "note", autocomplete: "off", maxlength: 1000 });

    async function submit() {
      const body = { amount: amount.value.trim(), currency: unit.value.trim().toUpperCase(), reference: reference.value.trim() };
      if (note.value.trim()) body.note = note.value.trim();
      await send("POST", `${pathOf(group)}/credits`, body);
      announce("The credit is entered");
      close(true);
    }

    return form(
      "Enter the credit",
      [
        h("p", {}, "For ", h("strong", {}, h("bdi", {}, group.metadata.external_entity_id)), " and the groups below it that have no balance of their own."),
        field("Amount", amount, "What is paid in. Below 0: what is withdrawn, at most what is available."),
        field("Currency", unit, "Three capital letters; the same in the whole tree."),
        field("Reference", reference, "Your name for the credit, such as an invoice's number. The same again changes nothing."),
        field("Note (optional)", note, "For people."),
      ],
      submit,
      { cancel: () => close(false) },
    );
  });
}
