// A client of Tollgate's management API: the operations by path, typed from its OpenAPI document.

export { tollgate } from "./gateway.js";
export type { Options, Tollgate } from "./gateway.js";
export { TollgateError } from "./failures.js";
export type { Detail } from "./failures.js";
export { iterate, ok } from "./answers.js";
export { verifyWebhook, WebhookVerificationError } from "./webhooks.js";
export type { components, operations, paths } from "./schema.js";
