// Files that a page makes: CSV that a spreadsheet opens without running what a cell says, and saving.

const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/; // a spreadsheet would run text that begins so

/** A line of CSV. Text that a spreadsheet would take for a formula gets an apostrophe in front; numbers do not. */
export const csvLine = (cells) => `${cells.map(csvCell).join(",")}\n`;

function csvCell(value) {
  const text = String(value ?? "");
  const safe = typeof value === "string" && FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Have the browser save a file. */
export function saveFile(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the download may just have begun
}
