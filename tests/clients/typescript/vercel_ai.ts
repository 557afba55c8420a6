// The Vercel AI SDK: `chat`, `responses` (@ai-sdk/openai), `messages` (@ai-sdk/anthropic), `compatible`.

import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

import { bare, type Case, DEGREES, DESCRIPTION, gathered, PNG, runs, says, serve, type Target } from './harness.ts'

const KIND = process.argv[2]
const Weather = z.object({ city: z.string(), celsius: z.int() })
const get_weather = tool({
  description: DESCRIPTION,
  inputSchema: z.object({ city: z.string().describe("The city's name") }),
  execute: async ({ city }) => `${DEGREES} in ${city}`,
})
const REASONS: Record<string, any> = {
  chat: { openai: { reasoningEffort: 'high', forceReasoning: true } },
  responses: {
    openai: {
      reasoningEffort: 'high',
      reasoningSummary: 'auto',
      forceReasoning: true,
      store: false,
      include: ['reasoning.encrypted_content'],
    },
  },
  messages: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } },
  compatible: { tollgate: { reasoningEffort: 'high' } },
}

function model(target: Target): any {
  const settings = { baseURL: `${target.base_url}/v1`, apiKey: target.api_key }
  if (KIND === 'messages') return createAnthropic(settings)(target.model)
  if (KIND === 'compatible') {
    const made = createOpenAICompatible({
      ...settings,
      name: 'tollgate',
      includeUsage: true,
      supportsStructuredOutputs: true,
    })
    return made(target.model)
  }
  return KIND === 'chat' ? createOpenAI(settings).chat(target.model) : createOpenAI(settings).responses(target.model)
}

const ask = (scenario: string, target: Target, more: object = {}): any => ({
  model: model(target),
  instructions: 'Be brief.',
  prompt: says(scenario),
  maxRetries: 0,
  stopWhen: stepCountIs(4),
  ...more,
})

/** What an application reads of a result, step by step. */
function told(steps: any[]): unknown {
  return steps.map((step) => ({
    content: bare(step.content.map(({ providerMetadata, ...part }: any) => part)),
    finish: step.finishReason,
    usage: bare({ ...step.usage, raw: undefined }),
  }))
}

const generate =
  (scenario: string, more: object = {}): Case =>
  async (target) =>
    told((await generateText(ask(scenario, target, more))).steps)

const stream =
  (scenario: string, more: object = {}): Case =>
  async (target) => {
    const result = streamText({ ...ask(scenario, target, more), onError: () => {} })
    const parts: any[] = await gathered(result.fullStream)
    const failed = parts.find((part) => part.type === 'error')
    if (failed) throw failed.error
    return { kinds: runs(parts.map((part) => part.type)), steps: told(await result.steps) }
  }

const structured: Case = async (target) => {
  const result = await generateText(ask('structured', target, { output: Output.object({ schema: Weather }) }))
  return result.output
}

const image: Case = async (target) => {
  const content = [
    { type: 'text', text: says('echo') },
    { type: 'file', data: Buffer.from(PNG, 'base64'), mediaType: 'image/png' },
  ]
  const { prompt, ...asked } = ask('echo', target)
  return told((await generateText({ ...asked, messages: [{ role: 'user', content }] })).steps)
}

const retries: Case = async (target) =>
  told((await generateText(ask(`rate-limited-once:${target.turn}`, target, { maxRetries: 2 }))).steps)

await serve({
  plain: generate('plain'),
  stream: stream('plain'),
  'tool loop': generate('tools', { tools: { get_weather } }),
  'tool loop, parallel': generate('parallel-tools', { tools: { get_weather } }),
  'tool loop, streamed': stream('parallel-tools', { tools: { get_weather } }),
  structured,
  reasoning: generate('thinking', { providerOptions: REASONS[KIND] }),
  'reasoning, streamed': stream('thinking', { providerOptions: REASONS[KIND] }),
  'reasoning in a tool loop': generate('thinking-tools', { tools: { get_weather }, providerOptions: REASONS[KIND] }),
  image,
  'max tokens': generate('max-tokens', { maxOutputTokens: 20 }),
  'error 400': generate('bad-request'),
  'error 429': generate('rate-limited'),
  'error overloaded': generate('overloaded'),
  'stream breaks': stream('cut'),
  'retry after 429': retries,
})
