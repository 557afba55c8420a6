// Runs one client's cases as told on standard input. The protocol is that of tests/clients/python/harness.py.

import { createInterface } from 'node:readline'

export interface Target {
  base_url: string
  api_key: string
  model: string
  /** Unlike in any other run, so that a failure once is a failure once. */
  turn: string
}
export type Case = (target: Target) => Promise<unknown>

export const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=='
export const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string', description: "The city's name" } },
  required: ['city'],
  additionalProperties: false,
} as const
export const DESCRIPTION = 'Get the weather of a city.'
export const DEGREES = '21 degrees'
export const STOP = 'END'

// Members that differ between two calls, that tell of the vendor's machinery, or that Tollgate adds.
const VOLATILE = new Set([
  ...['id', 'created', 'created_at', 'completed_at', 'system_fingerprint', 'service_tier', 'item_id', 'call_id'],
  ...['request_id', '_request_id', 'background', 'logprobs', 'sequence_number', 'tool_use_id', 'tool_call_id'],
  ...['store', 'reasoning_details'],
  ...['toolCallId', 'response_id', 'itemId', 'responseId', 'timestamp', 'messageId', 'modelId'],
])

// Members that only their vendor can read.
const OPAQUE = new Set(['encrypted_content', 'signature', 'data', 'reasoningEncryptedContent'])

/** A user's text that makes the scripted vendor play a scenario. */
export const says = (scenario: string): string => `[[scenario:${scenario}]] What is the weather?`

/** A value without what may differ. Absent, null, zero and empty count alike; JSON within a text is parsed. */
export function bare(value: unknown): unknown {
  if (typeof value === 'string' && /^[[{]/.test(value)) return parsed(value)
  if (Array.isArray(value)) return value.map(bare)
  if (value === null || typeof value !== 'object') return value
  const members = Object.entries(value).filter(([name]) => !VOLATILE.has(name))
  const kept = members.map(([name, item]) => [name, item && OPAQUE.has(name) ? 'opaque' : bare(item)] as const).filter(([, item]) => says_something(item))
  return Object.fromEntries(kept)
}

function says_something(item: unknown): boolean {
  if (item === false) return true
  if (Array.isArray(item)) return item.length > 0
  return typeof item === 'object' ? item !== null && Object.keys(item).length > 0 : Boolean(item)
}

function parsed(text: string): unknown {
  try {
    return { json: JSON.parse(text) }
  } catch {
    return text
  }
}

/** A sequence with equal neighbours merged: what a stream says, however it is cut. */
export const runs = (kinds: string[]): string[] => kinds.filter((kind, n) => kind !== kinds[n - 1])

export async function gathered<T>(events: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = []
  for await (const event of events) all.push(event)
  return all
}

function errorOf(error: any): object {
  let cause = error
  while (cause && cause.status === undefined && cause.statusCode === undefined && (cause.cause ?? cause.lastError)) {
    cause = cause.cause ?? cause.lastError
  }
  const body = cause?.responseBody ?? JSON.stringify(cause?.error ?? null)
  return {
    class: error?.constructor?.name ?? typeof error,
    status: cause?.status ?? cause?.statusCode ?? null,
    text: String(error?.message ?? error),
    body,
  }
}

/** Answer the lines on standard input until it ends. */
export async function serve(cases: Record<string, Case>): Promise<void> {
  const say = (value: unknown) => process.stdout.write(JSON.stringify(value) + '\n')
  console.log = console.error
  say({ cases: Object.keys(cases) })
  for await (const line of createInterface({ input: process.stdin })) {
    const { case: name, ...target } = JSON.parse(line)
    try {
      say({ result: (await cases[name](target)) ?? null })
    } catch (error) {
      console.error(error)
      say({ error: errorOf(error) })
    }
  }
}
