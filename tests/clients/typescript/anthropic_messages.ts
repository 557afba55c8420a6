// The @anthropic-ai/sdk package on Messages.

import Anthropic from '@anthropic-ai/sdk'

import { bare, type Case, DEGREES, DESCRIPTION, gathered, PNG, runs, says, SCHEMA, serve, STOP, type Target } from './harness.ts'

const TOOLS: any[] = [{ name: 'get_weather', description: DESCRIPTION, input_schema: SCHEMA, strict: true }]
const THINKING = { type: 'enabled', budget_tokens: 1024 }
const IMAGE = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PNG } }
const SHAPE = {
  type: 'object',
  properties: { city: { type: 'string' }, celsius: { type: 'integer' } },
  required: ['city', 'celsius'],
  additionalProperties: false,
}

const client = (target: Target, maxRetries = 0) =>
  new Anthropic({ baseURL: target.base_url, apiKey: target.api_key, maxRetries, timeout: 30_000 })

function ask(scenario: string, target: Target, more: object = {}, ...blocks: object[]): any {
  const messages = [{ role: 'user', content: [{ type: 'text', text: says(scenario) }, ...blocks] }]
  return { model: target.model, max_tokens: 2048, system: 'Be brief.', messages, ...more }
}

const create =
  (scenario: string, more: object = {}, ...blocks: object[]): Case =>
  async (target) =>
    bare(await client(target).messages.create(ask(scenario, target, more, ...blocks)))

const stream =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const events = client(target).messages.stream(ask(scenario, target, more))
    const seen: any[] = await gathered(events)
    return { kinds: runs(seen.map(kindOf)), final: bare(await events.finalMessage()) }
  }

function kindOf(event: any): string {
  if (event.type === 'content_block_start') return `start ${event.index} ${event.content_block.type}`
  if (event.type === 'content_block_delta') return `delta ${event.index} ${event.delta.type}`
  return event.type === 'message_delta' ? `message_delta ${event.delta.stop_reason}` : event.type
}

const toolLoop =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const asked = ask(scenario, target, { tools: TOOLS, ...more })
    const answers: unknown[] = []
    for (;;) {
      const message: any = await client(target).messages.create(asked)
      answers.push(bare(message))
      const uses = message.content.filter((block: any) => block.type === 'tool_use')
      if (uses.length === 0) return answers
      const results = uses.map((use: any) => ({ type: 'tool_result', tool_use_id: use.id, content: DEGREES }))
      asked.messages.push({ role: 'assistant', content: message.content }, { role: 'user', content: results })
    }
  }

const retries =
  (scenario: string): Case =>
  async (target) =>
    bare(await client(target, 2).messages.create(ask(`${scenario}:${target.turn}`, target)))

const models: Case = async (target) => {
  const listed = await client(target).models.list()
  return listed.data.map((model) => Object.keys(bare(model) as object).sort())
}

const countTokens: Case = async (target) => {
  const { messages } = ask('plain', target)
  const counted = await client(target).messages.countTokens({ model: target.model, messages })
  return { counted: counted.input_tokens > 0 }
}

await serve({
  plain: create('plain'),
  stream: stream('plain'),
  tools: create('tools', { tools: TOOLS }),
  'tools, streamed': stream('text-and-tool', { tools: TOOLS }),
  'parallel tools': create('parallel-tools', { tools: TOOLS, tool_choice: { type: 'any' } }),
  'parallel tools, streamed': stream('parallel-tools', { tools: TOOLS }),
  'tool loop': toolLoop('parallel-tools'),
  structured: create('structured', { output_config: { format: { type: 'json_schema', schema: SHAPE } } }),
  reasoning: create('thinking', { thinking: THINKING }),
  'reasoning, streamed': stream('thinking', { thinking: THINKING }),
  'reasoning in a tool loop': toolLoop('thinking-tools', { thinking: THINKING }),
  image: create('echo', {}, IMAGE),
  'stop sequence': create('stop-sequence', { stop_sequences: [STOP] }),
  'max tokens': create('max-tokens', { max_tokens: 20 }),
  refusal: create('refusal'),
  'error 400': create('bad-request'),
  'error 404': create('unknown-model'),
  'error 429': create('rate-limited'),
  'error 500': create('server-error'),
  'error overloaded': create('overloaded'),
  'stream breaks': stream('cut'),
  'retry after 429': retries('rate-limited-once'),
  'retry after 500': retries('server-error-once'),
  models,
  'count tokens': countTokens,
})
