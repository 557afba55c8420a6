// What the playground can call: each dialect's path, body, and where its answers hold their text.

import { route } from "../api.mjs";

const MESSAGES_VERSION = ["anthropic-version", "2023-06-01"];

/**
 * `body(slug, prompt, streams)`: the body that a prompt makes. `textOf(answer)`, `deltaOf(event)`: the text in a whole
 * answer and in one event of a stream. `sdk`: `openai` and `anthropic` calls, and which members their methods name.
 */
export const DIALECTS = [
  {
    name: "chat",
    title: "Chat completions",
    path: "/v1/chat/completions",
    streams: true,
    body: (model, prompt, stream) => ({ model, messages: user(prompt), ...(stream && { stream, stream_options: { include_usage: true } }) }),
    textOf: (answer) => answer.choices?.[0]?.message?.content,
    deltaOf: (event) => event.choices?.[0]?.delta?.content,
    sdk: {
      kind: "openai",
      method: "chat.completions.create",
      members: ["model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "seed", "stop", "tools", "tool_choice", "response_format", "reasoning_effort", "metadata", "user"],
      text: { python: "answer.choices[0].message.content", js: "answer.choices[0].message.content" },
      delta: { python: 'chunk.choices[0].delta.content or "" if chunk.choices else ""', js: 'chunk.choices[0]?.delta?.content ?? ""' },
    },
  },
  {
    name: "messages",
    title: "Messages",
    path: "/v1/messages",
    streams: true,
    headers: [MESSAGES_VERSION],
    body: (model, prompt, stream) => ({ model, max_tokens: 1024, messages: user(prompt), ...(stream && { stream }) }),
    textOf: (answer) => answer.content?.map((block) => block.text ?? "").join(""),
    deltaOf: (event) => event.delta?.text,
    sdk: {
      kind: "anthropic",
      method: "messages.create",
      members: ["model", "max_tokens", "messages", "stream", "system", "temperature", "top_p", "top_k", "stop_sequences", "tools", "tool_choice", "thinking", "metadata"],
      text: { python: '"".join(block.text for block in answer.content if block.type == "text")', js: 'answer.content.map((block) => (block.type === "text" ? block.text : "")).join("")' },
      delta: { python: 'getattr(getattr(chunk, "delta", None), "text", "")', js: 'chunk.type === "content_block_delta" && chunk.delta.type === "text_delta" ? chunk.delta.text : ""' },
    },
  },
  {
    name: "responses",
    title: "Responses",
    path: "/v1/responses",
    streams: true,
    body: (model, input, stream) => ({ model, input, ...(stream && { stream }) }),
    textOf: (answer) => answer.output?.flatMap((item) => item.content ?? []).map((part) => part.text ?? "").join(""),
    deltaOf: (event) => (event.type === "response.output_text.delta" ? event.delta : null),
    sdk: {
      kind: "openai",
      method: "responses.create",
      members: ["model", "input", "stream", "instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "text", "reasoning", "metadata", "store"],
      text: { python: "answer.output_text", js: "answer.output_text" },
      delta: { python: 'chunk.delta if chunk.type == "response.output_text.delta" else ""', js: 'chunk.type === "response.output_text.delta" ? chunk.delta : ""' },
    },
  },
  {
    name: "embeddings",
    title: "Embeddings",
    path: "/v1/embeddings",
    body: (model, input) => ({ model, input }),
    textOf: (answer) => answer.data && `${answer.data.length} embedding${answer.data.length === 1 ? "" : "s"} of ${answer.data[0]?.embedding?.length ?? 0} numbers`,
    sdk: {
      kind: "openai",
      method: "embeddings.create",
      members: ["model", "input", "dimensions", "encoding_format", "user"],
      text: { python: "answer.data[0].embedding", js: "answer.data[0].embedding" },
    },
  },
  {
    name: "count",
    title: "Count tokens",
    path: "/v1/messages/count_tokens",
    headers: [MESSAGES_VERSION],
    body: (model, prompt) => ({ model, messages: user(prompt) }),
    textOf: (answer) => answer.input_tokens !== undefined && `${answer.input_tokens} input tokens`,
    sdk: {
      kind: "anthropic",
      method: "messages.count_tokens",
      jsMethod: "messages.countTokens",
      members: ["model", "messages", "system", "tools", "tool_choice", "thinking"],
      text: { python: "answer.input_tokens", js: "answer.input_tokens" },
    },
  },
  {
    name: "predict",
    title: "Predict: a platform model, directly",
    isDirect: true,
    pathOf: ({ model, where }) => route`/models/${model}/` + where.split("/").map(encodeURIComponent).join("/") + "/predict",
    body: (_model, prompt) => ({ prompt }),
    textOf: () => null,
  },
];

const user = (content) => [{ role: "user", content }];
