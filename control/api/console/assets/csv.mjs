// CSV (RFC 4180) that a spreadsheet opens without running what a cell says.

const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/; // a spreadsheet would run text that begins so

/** A line of these cells: texts, and numbers, which are no formulas. */
export const csvLine = (cells) => `${cells.map(csvCell).join(",")}\n`;

function csvCell(value) {
  const text = String(value);
  const safe = typeof value === "string" && FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
