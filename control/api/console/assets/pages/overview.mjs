// Overview: what the gateway does now.

/** Draws the page. */
export async function draw() {}
