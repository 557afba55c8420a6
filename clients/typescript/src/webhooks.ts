// Verifies messages that Tollgate posts, by Standard Webhooks (standardwebhooks.com): HMAC-SHA256 and a time.

/** The message is not one that Tollgate signed with this secret just now. Answer 400, and use nothing of it. */
export class WebhookVerificationError extends Error {
  override readonly name = "WebhookVerificationError";
}

type Fields = Headers | Record<string, string | string[] | undefined>;

/**
 * Return the parsed message; throws WebhookVerificationError.
 *
 * `body`: the bytes as they were received. Numbers beyond 2^53 in request metadata are exact in these bytes alone. While
 * the secret is rotated a message has a signature by each of both: one that fits is enough. `tolerance`: in seconds.
 */
export async function verifyWebhook(
  secret: string,
  headers: Fields,
  body: Uint8Array,
  { tolerance = 300, now = Date.now() / 1000 }: { tolerance?: number; now?: number } = {},
): Promise<unknown> {
  const id = field(headers, "webhook-id");
  const timestamp = field(headers, "webhook-timestamp");
  const signatures = field(headers, "webhook-signature");
  if (!/^\d+$/.test(timestamp) || !(Math.abs(now - Number(timestamp)) <= tolerance)) {
    throw new WebhookVerificationError(`webhook-timestamp is not within ${tolerance} s of this clock`);
  }
  const key = await crypto.subtle.importKey("raw", keyOf(secret), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
  const start = new TextEncoder().encode(`${id}.${timestamp}.`);
  const content = new Uint8Array(start.length + body.length);
  content.set(start);
  content.set(body, start.length);
  for (const signature of signatures.split(" ")) {
    const digest = signature.startsWith("v1,") ? bytesOf(signature.slice(3)) : undefined;
    if (digest && (await crypto.subtle.verify("HMAC", key, digest, content))) {
      return JSON.parse(new TextDecoder().decode(body));
    }
  }
  throw new WebhookVerificationError("no signature of webhook-signature fits the body and this secret");
}

function field(headers: Fields, name: string): string {
  const value =
    headers instanceof Headers
      ? headers.get(name)
      : Object.entries(headers).find(([other]) => other.toLowerCase() === name)?.[1];
  if (typeof value !== "string") throw new WebhookVerificationError(`the header ${name} is missing`);
  return value;
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  const key = bytesOf(secret.replace(/^whsec_/, ""));
  if (!key?.length) throw new TypeError("secret must be the webhook's secret as Tollgate returned it: whsec_ and base64");
  return key;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return undefined;
  }
}
