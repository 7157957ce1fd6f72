// The AI SDK with @ai-sdk/openai-compatible.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, embed, generateText, jsonSchema, Output, streamText, tool } from 'ai'
import { z } from 'zod'
import { assert, EMBEDDING_MODEL, ENDLESS_TOKENS, QUESTION, run, URL, waitUntilIdle } from './checks.mjs'

const provider = createOpenAICompatible({
  name: 'tidegate',
  baseURL: `${URL}/v1`,
  apiKey: '-',
  includeUsage: true,
  supportsStructuredOutputs: true,
})
const asked = { model: provider('chat'), prompt: QUESTION, maxRetries: 0 }
const parameters = { type: 'object', properties: { city: { type: 'string', maxLength: 20 } }, required: ['city'] }
const weather = tool({ description: 'the weather', inputSchema: jsonSchema(parameters) })
const City = z.object({ city: z.string().max(20) })

await run({
  async chat() {
    const { text } = await generateText({ ...asked, temperature: 0, maxOutputTokens: 20 })
    assert(text.includes('Paris'), text)
  },

  async stream() {
    const result = streamText({ ...asked, maxOutputTokens: 20 })
    let text = ''
    for await (const piece of result.textStream) text += piece
    assert(text && (await result.usage).outputTokens > 0, 'no text or no usage')
  },

  async tools() {
    const { toolCalls } = await generateText({ ...asked, tools: { weather }, toolChoice: 'required' })
    assert(toolCalls.length && toolCalls[0].toolName === 'weather', 'no call')
    const result = streamText({ ...asked, tools: { weather }, toolChoice: { type: 'tool', toolName: 'weather' } })
    const [call] = await result.toolCalls
    assert(typeof call.input.city === 'string', 'no city')
  },

  async structured() {
    const { output } = await generateText({ ...asked, output: Output.object({ schema: City }) })
    City.parse(output)
  },

  async embeddings() {
    const { embedding } = await embed({ model: provider.textEmbeddingModel(EMBEDDING_MODEL), value: QUESTION })
    assert(embedding.length > 100, 'too short')
  },

  async error() {
    const refused = await generateText({ ...asked, model: provider('nope') }).catch((error) => error)
    assert(APICallError.isInstance(refused) && refused.statusCode === 404, String(refused))
    assert(refused.message.includes('nope'), refused.message)
    const parts = []
    for await (const part of streamText({ ...asked, model: provider('breaks'), onError() {} }).fullStream) parts.push(part)
    assert(parts.some((part) => part.type === 'error'), 'a broken stream looked whole')
  },

  async cancel() {
    const controller = new AbortController()
    const options = { tidegate: { ignore_eos: true } }
    const long = { maxOutputTokens: ENDLESS_TOKENS, providerOptions: options, abortSignal: controller.signal }
    for await (const _ of streamText({ ...asked, ...long }).textStream) break
    controller.abort()
    await waitUntilIdle()
  },
})
