// Dialogs: the browser's own `<dialog>` keeps the focus inside, closes on Escape and gives the focus back.

import { h, newId } from "./dom.mjs";
import { problemNotice, remark } from "./notice.mjs";

/** Show a modal dialog. `build(close)` makes its content; answers when it is closed, with what `close` was given. */
export function openDialog(title, build) {
  return new Promise((resolve) => {
    const heading = newId();
    let result;
    const close = (value) => {
      result = value;
      dialog.close();
    };
    const dialog = h(
      "dialog",
      { "aria-labelledby": heading, onclose: () => (dialog.remove(), resolve(result)) },
      h(
        "div.dialog-head",
        {},
        h("h2", { id: heading }, title),
        h("button.plain", { type: "button", "aria-label": "Close", onclick: () => close() }, "✕"),
      ),
      build(close),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * Ask before something that cannot be undone; `act` runs on yes, and its error is shown in the dialog. Answers whether
 * it was done. `typed`: what must be typed first, for what takes other things with it.
 */
export function confirmed(title, explanation, verb, act, typed = null) {
  return openDialog(title, (close) => {
    const said = h("div");
    const label = newId();
    const field = typed && h("input", { id: label, autocomplete: "off", spellcheck: "false" });
    const button = h("button.danger", { type: "submit" }, verb);
    const form = h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), submit()) },
      explanation,
      field && h("p.field", {}, h("label", { for: label }, "Type ", h("code", {}, typed), " to go on"), field),
      said,
      h("p.actions", {}, h("button", { type: "button", onclick: () => close(false) }, "Cancel"), button),
    );
    async function submit() {
      if (field && field.value !== typed) {
        said.replaceChildren(remark("bad", `This is not ${typed}.`));
        return;
      }
      button.disabled = true;
      try {
        await act();
        close(true);
      } catch (error) {
        said.replaceChildren(problemNotice(error));
        button.disabled = false;
      }
    }
    return form;
  });
}
