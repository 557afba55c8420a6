// Answers as plain values, and lists as their items.

interface Answer<T> {
  data?: T;
}

interface Page<T> {
  items: readonly T[];
  pagination: { has_more: boolean; cursor?: string | null };
}

/** Return the answer's body. The call has thrown TollgateError if it failed. */
export async function ok<T>(call: Promise<Answer<T>>): Promise<T> {
  return (await call).data as T;
}

/**
 * Yield every item of a list, and read the next page when the last one is used up:
 * `iterate((cursor) => client.GET("/v1/gateway/groups", { params: { query: { cursor } } }))`.
 */
export async function* iterate<T>(
  read: (cursor: string | undefined) => Promise<Answer<Page<T>>>,
): AsyncGenerator<T, void, undefined> {
  let page = await ok(read(undefined));
  yield* page.items;
  while (page.pagination.has_more) {
    page = await ok(read(page.pagination.cursor ?? undefined));
    yield* page.items;
  }
}
