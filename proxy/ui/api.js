// The proxy's /admin, from the page that it serves. The token is kept for this tab only, and sent as a header:
// so the stream of events is read by fetch, since an EventSource cannot send any.

const KEY = "warmroute.token";
const QUIET_MS = 10_000;
const LONGEST_MS = 15_000;

export class Refused extends Error {}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const keepToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);

async function message(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the proxy answered ${response.status}`;
  }
}

/** What is at a path under /admin; null where this proxy has nothing there. Throws Refused and Error. */
export async function get(path, signal) {
  const response = await fetch(`admin/${path}`, { headers: headers(), signal, cache: "no-store" });
  if (response.status === 404) return null;
  if (response.status === 401) throw new Refused(await message(response));
  if (!response.ok) throw new Error(await message(response));
  return response.json();
}

/** Tell the proxy to do something. Throws Refused and Error. */
export async function post(path, body) {
  const told = { ...headers(), "Content-Type": "application/json" };
  const response = await fetch(`admin/${path}`, { method: "POST", headers: told, body: JSON.stringify(body) });
  if (response.status === 401) throw new Refused(await message(response));
  if (!response.ok) throw new Error(await message(response));
  return response.json();
}

/** Follow the live frames until `signal` aborts. Throws Refused; whatever else goes wrong is tried again. */
export async function follow(signal, { frame, lost }) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      for await (const each of frames(signal)) {
        wait = 500;
        frame(each);
      }
      lost("The proxy ended the stream");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused) throw error;
      lost(error.message);
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, LONGEST_MS);
  }
}

async function* frames(signal) {
  const here = new AbortController();
  const abort = () => here.abort();
  signal.addEventListener("abort", abort, { once: true });
  let quiet = setTimeout(abort, QUIET_MS);
  try {
    const response = await fetch("admin/live", { headers: headers(), signal: here.signal, cache: "no-store" });
    if (response.status === 401) throw new Refused(await message(response));
    if (!response.ok) throw new Error(await message(response));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      quiet = setTimeout(abort, QUIET_MS);
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) yield JSON.parse(event.slice("data: ".length));
    }
  } finally {
    clearTimeout(quiet);
    signal.removeEventListener("abort", abort);
    here.abort();
  }
}
