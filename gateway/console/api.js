// Requests to this server, with the key of this tab. Paths are relative, so that the page also works below a proxy's prefix.

const STORED = "tidegate-api-key";

export const key = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => (value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED)),
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The response of a request that went well. Throws ApiError; a 401 is also told to the document, which asks for a key.
export async function request(path, { body, signal, accept } = {}) {
  const headers = { accept: accept ?? "application/json" };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  const options = { headers, signal, method: "GET", cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const message = messageOf(await response.text(), response.status);
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-needed", { detail: message }));
  throw new ApiError(response.status, message);
}

export async function json(path, options) {
  const text = await (await request(path, options)).text();
  return text ? JSON.parse(text) : {};
}

// OpenAI's errors are objects, KServe's are texts; either may come as an event.
export function messageOf(text, status) {
  try {
    const { error } = JSON.parse(text.replace(/^data:/, ""));
    return (typeof error === "string" ? error : error.message) || `the server answered ${status}`;
  } catch {
    return `the server answered ${status}`;
  }
}

// The data of each server-sent event of a response, as it arrives.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
