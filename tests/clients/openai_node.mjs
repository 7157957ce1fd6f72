// openai-node: its iterator, its stream helpers and its parsers.
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { assert, EMBEDDING_MODEL, ENDLESS_TOKENS, QUESTION, run, URL, waitUntilIdle } from './checks.mjs'

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: '-', maxRetries: 0, timeout: 300_000 })
const body = { model: 'chat', messages: [{ role: 'user', content: QUESTION }] }
const City = z.object({ city: z.string().max(20) })
const parameters = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 20 } },
  required: ['city'],
  additionalProperties: false,
}
const forced = {
  tools: [{ type: 'function', function: { name: 'weather', parameters } }],
  tool_choice: 'required',
  parallel_tool_calls: false,
}

await run({
  async chat() {
    const answer = await client.chat.completions.create({ ...body, max_tokens: 20, temperature: 0 })
    assert(answer.choices[0].message.content.includes('Paris'), 'no Paris')
    const response = await client.responses.create({ model: 'chat', input: QUESTION, max_output_tokens: 20 })
    assert(response.output_text, 'no text')
  },

  async stream() {
    const events = client.chat.completions.stream({ ...body, max_tokens: 20, stream_options: { include_usage: true } })
    const final = await events.finalChatCompletion()
    assert(final.choices[0].message.content && final.usage.completion_tokens > 0, 'no text or no usage')
    const response = await client.responses.stream({ model: 'chat', input: QUESTION, temperature: 0 }).finalResponse()
    assert(response.status === 'completed' && response.output.length, response.status)
  },

  async tools() {
    const plain = await client.chat.completions.create({ ...body, ...forced })
    const streamed = await client.chat.completions.stream({ ...body, ...forced }).finalChatCompletion()
    for (const answer of [plain, streamed]) {
      const calls = answer.choices[0].message.tool_calls
      assert(calls.length === 1 && calls[0].function.name === 'weather', 'not one call')
      City.parse(JSON.parse(calls[0].function.arguments))
    }
  },

  async structured() {
    const answer = await client.chat.completions.parse({ ...body, response_format: zodResponseFormat(City, 'city') })
    City.parse(answer.choices[0].message.parsed)
  },

  async embeddings() {
    const answer = await client.embeddings.create({ model: EMBEDDING_MODEL, input: QUESTION })
    assert(answer.data[0].embedding.length > 100, 'too short')
  },

  async error() {
    const refused = await client.chat.completions.create({ ...body, model: 'nope' }).catch((error) => error)
    assert(refused instanceof OpenAI.NotFoundError && refused.code === 'model_not_found', String(refused))
    let broken
    try {
      for await (const _ of await client.chat.completions.create({ ...body, model: 'breaks', stream: true }));
    } catch (error) {
      broken = error
    }
    assert(broken instanceof OpenAI.APIError && broken.code, String(broken))
  },

  async cancel() {
    const long = { ...body, max_tokens: ENDLESS_TOKENS, ignore_eos: true, stream: true }
    for await (const _ of await client.chat.completions.create(long)) break
    await waitUntilIdle()
  },
})
