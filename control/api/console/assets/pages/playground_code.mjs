// A call as curl, Python and TypeScript. Texts of users are quoted, and what an editor would hide is escaped.

const TOKEN = /"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g;
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu;
const KEY = "TOLLGATE_API_KEY";

/**
 * `{title, language, text}` of each form that fits. `call`: `{dialect, path, headers, bodyText, baseUrl}`; `bodyText` is
 * JSON. The key is taken from the environment.
 */
export function snippets(call) {
  const made = [{ title: "curl", text: curl(call) }];
  const members = membersOf(call.bodyText);
  if (!call.dialect.sdk || !members) return made;
  return [...made, { title: "Python", text: python(call, members) }, { title: "TypeScript", text: typescript(call, members) }];
}

function curl({ path, headers, bodyText, baseUrl }) {
  const lines = [
    `curl --no-buffer ${shellText(baseUrl + path)}`,
    `--header "Authorization: Bearer $${KEY}"`,
    "--header 'Content-Type: application/json'",
    ...headers.map(([name, value]) => `--header ${shellText(`${name}: ${value}`)}`),
    `--data-raw ${shellText(tokens(bodyText).map(jsonToken).join(""))}`,
  ];
  return lines.join(" \\\n  ");
}

function python({ dialect, baseUrl }, members) {
  const { kind, method, text, delta, members: known } = dialect.sdk;
  const named = members.filter(([name]) => known.includes(name));
  const others = members.filter(([name]) => !known.includes(name));
  const words = named.map(([name, value]) => `    ${name}=${pythonValue(value)},\n`);
  if (others.length) words.push(`    extra_body={${others.map(([name, value]) => `${pythonText(name)}: ${pythonValue(value)}`).join(", ")}},\n`);
  const [library, client] = kind === "openai" ? ["openai", "OpenAI"] : ["anthropic", "Anthropic"];
  return [
    "import os\n\n",
    `from ${library} import ${client}\n\n`,
    `client = ${client}(base_url=${pythonText(sdkUrl(kind, baseUrl))}, api_key=os.environ["${KEY}"])\n`,
    `answer = client.${method}(\n`,
    ...words,
    ")\n",
    isStreamed(dialect, members) ? `for chunk in answer:\n    print(${delta.python}, end="", flush=True)\nprint()` : `print(${text.python})`,
  ].join("");
}

function typescript({ dialect, baseUrl }, members) {
  const { kind, method, jsMethod, text, delta } = dialect.sdk;
  const [library, client] = kind === "openai" ? ["openai", "OpenAI"] : ["@anthropic-ai/sdk", "Anthropic"];
  return [
    `import ${client} from "${library}";\n\n`,
    `const client = new ${client}({ baseURL: ${jsText(sdkUrl(kind, baseUrl))}, apiKey: process.env.${KEY} });\n`,
    `const answer = await client.${jsMethod ?? method}({\n`,
    ...members.map(([name, value]) => `  ${jsName(name)}: ${jsValue(value)},\n`),
    "});\n",
    isStreamed(dialect, members)
      ? `for await (const chunk of answer) process.stdout.write(${delta.js});\nprocess.stdout.write("\\n");`
      : `console.log(${text.js});`,
  ].join("");
}

// The Anthropic SDK adds `/v1` itself.
const sdkUrl = (kind, baseUrl) => (kind === "openai" ? `${baseUrl}/v1` : baseUrl);

const isStreamed = (dialect, members) => Boolean(dialect.streams) && members.some(([name, value]) => name === "stream" && value === "true");

/** `[name, JSON text]` of each member of the object that `text` is; null if it is none. Numbers keep their digits. */
function membersOf(text) {
  const all = tokens(text);
  if (all[0] !== "{") return null;
  const members = new Map(); // of a name that is there twice, the last one counts
  let depth = 0;
  let name = null;
  let value = "";
  for (const token of all) {
    if ("}]".includes(token)) depth -= 1;
    const isEnd = (depth === 1 && token === ",") || (depth === 0 && token === "}");
    if (isEnd && name !== null) {
      members.set(name, value);
      name = null;
    } else if (depth === 1 && name === null && token.startsWith('"')) {
      name = JSON.parse(token);
      value = null;
    } else if (depth === 1 && value === null && token === ":") {
      value = "";
    } else if (name !== null) {
      value += token;
    }
    if ("{[".includes(token)) depth += 1;
  }
  return [...members];
}

const tokens = (text) => text.match(TOKEN) ?? [];
const codesOf = (text) => Array.from({ length: text.length }, (_, at) => text.charCodeAt(at));
const hex = (code, length) => code.toString(16).padStart(length, "0");
const jsonToken = (token) => token.replace(HIDDEN, (one) => codesOf(one).map((code) => `\\u${hex(code, 4)}`).join(""));
const shellText = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function pythonText(text) {
  return quoted(text, (one) => (one.length === 2 ? `\\U${hex(one.codePointAt(0), 8)}` : `\\u${hex(one.charCodeAt(0), 4)}`));
}

function jsText(text) {
  return quoted(text, (one) => `\\u{${hex(one.codePointAt(0), 1)}}`);
}

function quoted(text, escape) {
  return `"${text.replace(/["\\]/g, "\\$&").replaceAll("\n", "\\n").replaceAll("\t", "\\t").replace(HIDDEN, escape)}"`;
}

const PYTHON_WORDS = { true: "True", false: "False", null: "None" };

/** A JSON text as Python writes the same value. */
function pythonValue(text) {
  return spaced(text, (token) => (token.startsWith('"') ? pythonText(JSON.parse(token)) : (PYTHON_WORDS[token] ?? token)));
}

/** The same in TypeScript. */
function jsValue(text) {
  return spaced(text, (token, isName) => (token.startsWith('"') ? (isName ? jsName : jsText)(JSON.parse(token)) : token));
}

// A literal's `__proto__: …` would set the prototype; in brackets it is a member like any other.
function jsName(name) {
  if (name === "__proto__") return `["${name}"]`;
  return /^[A-Za-z_]\w*$/.test(name) ? name : jsText(name);
}

function spaced(text, write) {
  const all = tokens(text);
  return all.map((token, at) => write(token, all[at + 1] === ":") + (token === "," || token === ":" ? " " : "")).join("");
}
