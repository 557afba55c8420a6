// The openai package on Chat Completions.

import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'

import { bare, type Case, DEGREES, DESCRIPTION, gathered, PNG, runs, says, SCHEMA, serve, STOP, type Target } from './harness.ts'

const TOOLS: any[] = [
  { type: 'function', function: { name: 'get_weather', description: DESCRIPTION, parameters: SCHEMA, strict: true } },
]
const Weather = z.object({ city: z.string(), celsius: z.int() })

const client = (target: Target, maxRetries = 0) =>
  new OpenAI({ baseURL: `${target.base_url}/v1`, apiKey: target.api_key, maxRetries, timeout: 30_000 })

function ask(scenario: string, target: Target, more: object = {}): any {
  const messages = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: says(scenario) },
  ]
  return { model: target.model, messages, ...more }
}

const create =
  (scenario: string, more: object = {}): Case =>
  async (target) =>
    bare(await client(target).chat.completions.create(ask(scenario, target, more)))

const stream =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const asked = ask(scenario, target, { stream_options: { include_usage: true }, ...more })
    const events = client(target).chat.completions.stream(asked)
    const chunks: any[] = await gathered(events)
    return { kinds: runs(chunks.flatMap(kindsOf)), final: bare(await events.finalChatCompletion()) }
  }

function kindsOf(chunk: any): string[] {
  const kinds = chunk.choices.flatMap((choice: any) => {
    const delta = bare(choice.delta) as any
    const named = Object.keys(delta).filter((name) => name !== 'role' && name !== 'tool_calls')
    const calls = (delta.tool_calls ?? []).map((call: any) => `call ${call.index ?? 0}`)
    return [...named, ...calls, ...(choice.finish_reason ? [`finish ${choice.finish_reason}`] : [])]
  })
  return chunk.usage ? [...kinds, 'usage'] : kinds
}

const toolLoop =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const runner = client(target).chat.completions.runTools({
      ...ask(scenario, target, more),
      tools: [
        {
          type: 'function',
          function: {
            name: 'get_weather',
            description: DESCRIPTION,
            parameters: SCHEMA,
            parse: JSON.parse,
            function: ({ city }: { city: string }) => `${DEGREES} in ${city}`,
          },
        },
      ],
    } as any)
    await runner.done()
    return bare(runner.messages)
  }

const structured: Case = async (target) => {
  const format = zodResponseFormat(Weather, 'weather')
  return bare(await client(target).chat.completions.parse(ask('structured', target, { response_format: format })))
}

const image: Case = async (target) => {
  const content = [
    { type: 'text', text: says('echo') },
    { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG}` } },
  ]
  return bare(await client(target).chat.completions.create({ model: target.model, messages: [{ role: 'user', content }] } as any))
}

const retries =
  (scenario: string): Case =>
  async (target) =>
    bare(await client(target, 2).chat.completions.create(ask(`${scenario}:${target.turn}`, target)))

const models: Case = async (target) => {
  const listed = await client(target).models.list()
  return listed.data.map((model) => Object.keys(bare(model) as object).sort())
}

await serve({
  plain: create('plain'),
  stream: stream('plain'),
  tools: create('tools', { tools: TOOLS }),
  'tools, streamed': stream('text-and-tool', { tools: TOOLS }),
  'parallel tools': create('parallel-tools', { tools: TOOLS, tool_choice: 'required' }),
  'parallel tools, streamed': stream('parallel-tools', { tools: TOOLS }),
  'tool loop': toolLoop('parallel-tools'),
  structured,
  reasoning: create('thinking', { reasoning_effort: 'high' }),
  'reasoning, streamed': stream('thinking', { reasoning_effort: 'low' }),
  'reasoning in a tool loop': toolLoop('thinking-tools', { reasoning_effort: 'medium' }),
  image,
  'stop sequence': create('stop-sequence', { stop: [STOP] }),
  'max tokens': create('max-tokens', { max_completion_tokens: 20 }),
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
})
