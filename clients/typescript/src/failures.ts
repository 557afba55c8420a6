// The error of every call that has no success: the API's own answer, another server's, or none at all.

export interface Detail {
  field: string;
  message: string;
}

/** A call failed. Its text names the status, the reason and the fields at fault, and contains no credential. */
export class TollgateError extends Error {
  override readonly name = "TollgateError";
  /** Of the answer; undefined if there was none. */
  readonly status: number | undefined;
  /** The API's, such as `NOT_FOUND`; `NO_ANSWER` if nothing answered, `FOREIGN_ANSWER` if the answer is not the API's. */
  readonly code: string;
  /** The fields at fault. */
  readonly details: readonly Detail[];
  /** What the server's log and audit trail have. */
  readonly requestId: string | undefined;
  /** When a repeat may succeed, in seconds. */
  readonly retryAfter: number | undefined;

  constructor(code: string, reason: string, more: Partial<Omit<TollgateError, keyof Error>> & { cause?: unknown } = {}) {
    const fields = (more.details ?? []).map((one) => `\n  ${one.field}: ${one.message}`);
    super([more.status, `${code}:`, reason].filter((word) => word !== undefined).join(" ") + fields.join(""), {
      cause: more.cause,
    });
    this.code = code;
    this.status = more.status;
    this.details = more.details ?? [];
    this.requestId = more.requestId;
    this.retryAfter = more.retryAfter;
  }
}

/** Return the error that an answer other than success means, and leave its body unread. */
export async function errorOf(request: Request, answer: Response): Promise<TollgateError> {
  const body = await bodyOf(answer.clone());
  const more = {
    status: answer.status,
    requestId: answer.headers.get("x-request-id") ?? undefined,
    retryAfter: seconds(body["retry_after"]) ?? seconds(answer.headers.get("retry-after")),
  };
  const reason = body["error"];
  if (typeof reason !== "string") {
    return new TollgateError("FOREIGN_ANSWER", `${place(request)}: ${answer.statusText}`, more);
  }
  const details = Array.isArray(body["details"]) ? (body["details"] as Detail[]) : [];
  return new TollgateError(String(body["code"]), reason, { ...more, details });
}

/** Return the error of a request that nothing answered. A change that was asked for may have taken effect. */
export function noAnswer(request: Request, cause: unknown): TollgateError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new TollgateError("NO_ANSWER", `${place(request)}: no answer (${reason})`, { cause });
}

function place(request: Request): string {
  return `${request.method} ${new URL(request.url).pathname}`;
}

async function bodyOf(answer: Response): Promise<Record<string, unknown>> {
  try {
    const body: unknown = await answer.json();
    return typeof body === "object" && body !== null ? (body as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

function seconds(value: unknown): number | undefined {
  const figure = typeof value === "number" || typeof value === "string" ? Number(value) : NaN;
  return Number.isFinite(figure) && figure > 0 ? figure : undefined;
}
