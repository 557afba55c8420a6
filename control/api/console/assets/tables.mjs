// The tables of policy that pages read, instead of lists of their own (control/api/console/tables.py).

const tables = await (await fetch("/console/tables.json")).json();

export const LIMITS = tables.limits;
/** `{name, title, fields}` each: the providers that the form of a target offers, and the fields that each one has. */
export const PROVIDERS = tables.providers;
/** The regions that a new endpoint may have; the first one needs no setting. */
export const REGIONS = tables.regions;
