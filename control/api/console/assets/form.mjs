// Forms: labelled fields, one submit at a time, errors beside the fields that the API names.

import { Problem } from "./api.mjs";
import { h, newId } from "./dom.mjs";
import { announce, problemNotice } from "./notice.mjs";

/**
 * A labelled control. `control`: an input, select or textarea, whose `name` is the path of the API's field
 * (`metadata.name`), so that errors find it. `hint`: what to enter, read aloud with the label.
 */
export function field(label, control, hint = null) {
  control.id ||= newId();
  const hintId = hint && newId();
  if (hint) control.setAttribute("aria-describedby", hintId);
  return h("p.field", {}, h("label", { for: control.id }, label), control, hint && h("span.hint", { id: hintId }, hint));
}

/** A select of `[value, text]` pairs. */
export function select(name, options, chosen = null, attributes = {}) {
  const made = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("select", { name, ...attributes }, made);
}

/**
 * A form that calls `submit()` with what is typed. Errors of the API are shown above the button, and fields that it names
 * are marked and get the focus. `verb`: the button. `cancel`: called by a second button. `inline`: fields in a row, as of
 * filters and searches, whose button is not what the page is for; `primary` says otherwise. `needs`: as `h` has it.
 */
export function form(verb, children, submit, { cancel = null, inline = false, primary = !inline, needs } = {}) {
  const said = h("div.said");
  const button = h(primary ? "button.primary" : "button", { type: "submit", needs }, verb);
  const element = h(
    inline ? "form.inline" : "form",
    { novalidate: true, onsubmit: (event) => (event.preventDefault(), run()) },
    children,
    said,
    h("p.actions", {}, cancel && h("button", { type: "button", onclick: () => cancel() }, "Cancel"), button),
  );

  async function run() {
    unmark(element);
    said.replaceChildren();
    button.disabled = true;
    element.setAttribute("aria-busy", "true");
    try {
      await submit(element);
    } catch (error) {
      if (error.name !== "AbortError") said.replaceChildren(problemNotice(error));
      if (error instanceof Problem) mark(element, error);
    } finally {
      button.disabled = false;
      element.removeAttribute("aria-busy");
    }
  }

  return element;
}

function unmark(element) {
  for (const one of element.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  for (const one of element.querySelectorAll(".fault")) one.remove();
}

/** Mark what the API names, or a part of it, and say beside it what is wrong. The first one gets the focus. */
function mark(element, problem) {
  const isOf = (control, { field: path }) => path === control.name || path.startsWith(`${control.name}.`);
  const wrong = [...element.elements].filter((control) => control.name && problem.details.some((one) => isOf(control, one)));
  for (const control of wrong) {
    control.setAttribute("aria-invalid", "true");
    const messages = problem.details.filter((one) => isOf(control, one)).map((one) => one.message);
    control.closest(".field")?.append(h("span.fault.hint.bad-text", {}, messages.join("; ")));
  }
  const hider = wrong[0]?.closest("details");
  if (hider) hider.open = true;
  wrong[0]?.focus();
}

/** A button that runs `act`, is disabled meanwhile, and says what failed beside itself. */
export function actionButton(text, act, attributes = {}) {
  const said = h("span");
  const button = h(
    "button",
    {
      type: "button",
      ...attributes,
      onclick: async () => {
        button.disabled = true;
        said.replaceChildren();
        try {
          await act();
        } catch (error) {
          said.replaceChildren(problemNotice(error));
        }
        button.disabled = false;
      },
    },
    text,
  );
  return h("span.action", {}, button, said);
}

/** A text that people copy: a key, a command. */
export function copyable(text, label) {
  const shown = h("code.copyable", { tabindex: 0, "aria-label": label }, text);
  const button = h("button", { type: "button", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      announce("Copied");
    } catch {
      // No clipboard without https, other than on this machine: select it, so that Ctrl-C does.
      getSelection().selectAllChildren(shown);
      announce("Selected: press Ctrl-C");
    }
  }
  return h("div.copy", {}, shown, button);
}
