// The openai package on Responses.

import OpenAI from 'openai'
import { zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'

import { bare, type Case, DEGREES, DESCRIPTION, gathered, PNG, runs, says, SCHEMA, serve, type Target } from './harness.ts'

const TOOLS: any[] = [{ type: 'function', name: 'get_weather', description: DESCRIPTION, parameters: SCHEMA, strict: true }]
const REASONS = { reasoning: { effort: 'high', summary: 'auto' }, include: ['reasoning.encrypted_content'], store: false }
const Weather = z.object({ city: z.string(), celsius: z.int() })

const client = (target: Target, maxRetries = 0) =>
  new OpenAI({ baseURL: `${target.base_url}/v1`, apiKey: target.api_key, maxRetries, timeout: 30_000 })

function ask(scenario: string, target: Target, more: object = {}): any {
  const input = [{ role: 'user', content: [{ type: 'input_text', text: says(scenario) }] }]
  return { model: target.model, instructions: 'Be brief.', input, ...more }
}

const create =
  (scenario: string, more: object = {}): Case =>
  async (target) =>
    bare(await client(target).responses.create(ask(scenario, target, more)))

const stream =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const events = client(target).responses.stream(ask(scenario, target, more))
    const seen: any[] = await gathered(events)
    const kinds = runs(seen.map((event) => `${event.type} ${event.output_index ?? ''}`.trim()))
    return { kinds, final: bare(await events.finalResponse()) }
  }

const toolLoop =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const asked = ask(scenario, target, { tools: TOOLS, ...more })
    const answers: unknown[] = []
    for (;;) {
      const response: any = await client(target).responses.create(asked)
      answers.push(bare(response.output))
      const calls = response.output.filter((item: any) => item.type === 'function_call')
      if (calls.length === 0) return answers
      asked.input.push(...response.output)
      asked.input.push(
        ...calls.map((call: any) => ({ type: 'function_call_output', call_id: call.call_id, output: DEGREES })),
      )
    }
  }

const structured: Case = async (target) => {
  const asked = ask('structured', target, { text: { format: zodTextFormat(Weather, 'weather') } })
  const response = await client(target).responses.parse(asked)
  return { parsed: bare(response.output_parsed), output: bare(response.output) }
}

const image: Case = async (target) => {
  const asked = ask('echo', target)
  asked.input[0].content.push({ type: 'input_image', detail: 'auto', image_url: `data:image/png;base64,${PNG}` })
  return bare(await client(target).responses.create(asked))
}

const retries =
  (scenario: string): Case =>
  async (target) =>
    bare(await client(target, 2).responses.create(ask(`${scenario}:${target.turn}`, target)))

await serve({
  plain: create('plain'),
  stream: stream('plain'),
  tools: create('tools', { tools: TOOLS }),
  'tools, streamed': stream('text-and-tool', { tools: TOOLS }),
  'parallel tools': create('parallel-tools', { tools: TOOLS, tool_choice: 'required' }),
  'parallel tools, streamed': stream('parallel-tools', { tools: TOOLS }),
  'tool loop': toolLoop('parallel-tools'),
  structured,
  reasoning: create('thinking', REASONS),
  'reasoning, streamed': stream('thinking', REASONS),
  'reasoning in a tool loop': toolLoop('thinking-tools', REASONS),
  image,
  'max tokens': create('max-tokens', { max_output_tokens: 20 }),
  refusal: create('refusal'),
  'error 400': create('bad-request'),
  'error 429': create('rate-limited'),
  'error 500': create('server-error'),
  'error overloaded': create('overloaded'),
  'stream breaks': stream('cut'),
  'retry after 429': retries('rate-limited-once'),
})
