// What checks.py is for Python, for scripts in Node.

export const URL = process.env.SERVER_URL
export const EMBEDDING_MODEL = process.env.EMBEDDING_MODEL
export const QUESTION = 'What is the capital of France?'
export const ENDLESS_TOKENS = 4000

const CHECKS = ['chat', 'stream', 'tools', 'structured', 'embeddings', 'error', 'cancel']

export function assert(holds, message) {
  if (!holds) throw new Error(message)
}

// What a cancel must come to.
export async function waitUntilIdle(milliseconds = 10_000) {
  const end = Date.now() + milliseconds
  while (await numRunning()) {
    assert(Date.now() < end, 'the server still generates')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

async function numRunning() {
  const text = await (await fetch(`${process.env.METRICS_URL}/metrics`)).text()
  const lines = text.split('\n').filter((line) => line.startsWith('vllm:num_requests_running'))
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
}

export async function run(script) {
  for (const name of CHECKS) {
    if (script[name]) console.log(JSON.stringify({ check: name, ...(await outcome(script[name])) }))
  }
}

async function outcome(check) {
  try {
    await check()
  } catch (error) {
    console.error(error)
    return { outcome: 'failed', detail: `${error.name}: ${error.message}`.slice(0, 500) }
  }
  return { outcome: 'passed', detail: '' }
}
