// Builds the page's elements. Text becomes text nodes and attributes are set by name, so nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const URL_ATTRIBUTES = new Set(["href", "src", "action"]);
let lastId = 0;
/** The attributes of controls that may not be used, by the permission that they need; see roles.mjs. */
export const denials = new Map();

/**
 * An HTML element: `h("a.button", {href: "/console"}, "Home")`.
 * `attributes`: `onclick` and the like are functions; true sets an empty attribute; false, null and undefined set none.
 * `needs`: the permission without which it is disabled.
 * `children`: elements, text, numbers, arrays of them; null, undefined and false are left out.
 */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name), classes, attributes, children);
}

/** An SVG element, as `h` makes an HTML one. */
export function svg(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElementNS(SVG, name), classes, attributes, children);
}

/** A new id for `for`, `aria-labelledby` and the like. */
export function newId() {
  lastId += 1;
  return `i${lastId}`;
}

/**
 * Replace what `container` holds, for content that is drawn again and again. Elements that are there already are not moved.
 * The focus stays on the element with the same `data-key`, open `<details>` with a `data-key` stay open, and scrolled
 * elements with one stay scrolled.
 */
export function redraw(container, ...children) {
  const focused = container.contains(document.activeElement) && document.activeElement.closest("[data-key]");
  const kept = new Map();
  for (const one of container.querySelectorAll("[data-key]")) {
    kept.set(one.dataset.key, { open: one.open, left: one.scrollLeft, top: one.scrollTop });
  }
  replaceContent(container, flat(children));
  for (const one of container.querySelectorAll("[data-key]")) {
    const before = kept.get(one.dataset.key);
    if (!before) continue;
    if (one instanceof HTMLDetailsElement) one.open = before.open;
    one.scrollLeft = before.left;
    one.scrollTop = before.top;
    if (focused && focused.dataset.key === one.dataset.key && !one.matches(":focus")) one.focus({ preventScroll: true });
  }
}

function replaceContent(container, children) {
  const staying = new Set(children);
  for (const one of [...container.childNodes]) if (!staying.has(one)) one.remove();
  children.forEach((child, at) => {
    if (container.childNodes[at] !== child) container.insertBefore(child, container.childNodes[at] ?? null);
  });
}

function fill(element, classes, { needs, ...attributes }, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries({ ...attributes, ...denials.get(needs) })) set(element, name, value);
  element.append(...flat(children));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    element.addEventListener(name.slice(2), value); // a string here would do nothing
    return;
  }
  if (URL_ATTRIBUTES.has(name) && !isSafeUrl(value)) throw new Error(`not an address for ${name}`);
  element.setAttribute(name, value === true ? "" : value);
}

/** Whether a link may lead there: our own paths, and web addresses; never `javascript:` or `data:`. */
export function isSafeUrl(value) {
  const url = new URL(value, location.href);
  return url.protocol === "https:" || url.protocol === "http:" || url.protocol === "blob:";
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
