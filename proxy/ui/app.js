// The page: asks for the token if there is one, follows the live frames, and shows them section by section.

import { Refused, dropToken, follow, get, hasToken, keepToken } from "./api.js";
import { Breaks } from "./breaks.js";
import { Canary } from "./canary.js";
import { Decisions } from "./decisions.js";
import { make, say } from "./dom.js";
import { History } from "./figures.js";
import { Fleet } from "./fleet.js";
import { Headline } from "./headline.js";
import { Queue, Ttft } from "./latency.js";
import { Prefixes } from "./prefixes.js";
import { Savings, Shadows } from "./savings.js";
import { Waterfall } from "./waterfall.js";

const at = (id) => document.getElementById(id);
const body = (id) => at(id).querySelector(".body");

const live = [
  new Headline(at("headline")),
  new Waterfall(body("waterfall")),
  new Ttft(body("ttft")),
  new Fleet(body("fleet")),
  new Queue(body("queue")),
];
/** What is asked for now and then: where, how often, and who shows it. */
const asked = [
  { path: "requests?limit=12", seconds: 2, section: new Decisions(body("decisions"), at("why")) },
  { path: "prefixes", seconds: 5, section: new Prefixes(body("prefixes")) },
  { path: "breaks", seconds: 10, section: new Breaks(body("breaks")) },
  { path: "savings", seconds: 5, section: new Savings(body("savings")) },
  { path: "shadow", seconds: 5, section: new Shadows(body("shadow")) },
  { path: "canary", seconds: 2, section: new Canary(body("canary")) },
];

let history = new History();
let frame = null;
let span = 0;
let following = null;

function render() {
  if (frame === null) return;
  const view = { frame, history, over: history.over(span) };
  for (const section of live) section.show(view);
  say(at("policy"), frame.policy);
  const { span: seen } = view.over;
  say(at("seen"), seen !== null && seen < span - 2 ? `${Math.round(seen)} s of it seen` : "");
  notices(frame);
}

/** What is degraded, as /ready tells it. */
function notices({ models, parts }) {
  const found = [];
  for (const [name, model] of Object.entries(models)) {
    if (model.replicas === 0) found.push(`No usable replica serves ${name}.`);
    if (model.degraded) found.push(`${name}: ${model.degraded}`);
  }
  for (const [name, part] of Object.entries(parts)) {
    if (part.up === false) found.push(`${name}: ${part.why}`);
  }
  const list = at("notices");
  list.hidden = found.length === 0;
  if (list.dataset.told !== found.join("\n")) {
    list.dataset.told = found.join("\n");
    list.replaceChildren(...found.map((each) => make("li", {}, each)));
  }
}

function state(name, words) {
  const status = at("status");
  status.dataset.state = name;
  say(status, words);
  at("figures").dataset.state = name;
}

async function watch() {
  following?.abort();
  following = new AbortController();
  const { signal } = following;
  try {
    await Promise.all([
      follow(signal, {
        frame: (each) => {
          if (signal.aborted) return;
          frame = each;
          history.add(each);
          at("figures").hidden = false;
          at("ask").hidden = true;
          state("live", "Live");
          render();
        },
        lost: (why) => state("lost", `Reconnecting: ${why}`),
      }),
      ...asked.map((each) => poll(each, signal)),
    ]);
  } catch (error) {
    if (signal.aborted) return;
    following.abort();
    if (!(error instanceof Refused)) throw error;
    ask(error.message);
  }
}

async function poll({ path, seconds, section }, signal) {
  while (!signal.aborted) {
    try {
      const told = await get(path, signal);
      section.show(told);
      if (told === null) return; // this proxy does not do that: nothing to ask again
    } catch (error) {
      if (signal.aborted || error instanceof Refused) return; // the stream says so as well
      // What else goes wrong is asked for again: what is shown stays, and the stream tells of the proxy.
    }
    await new Promise((done) => setTimeout(done, 1000 * seconds));
  }
}

function ask(why) {
  state("waiting", "Waiting for the token");
  say(at("refused"), hasToken() ? "This token was not accepted." : "");
  if (why.includes("closed")) say(at("refused"), why);
  dropToken();
  at("figures").hidden = true;
  at("ask").hidden = false;
  at("token").value = "";
  at("token").focus();
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(at("token").value);
  state("waiting", "Connecting…");
  watch();
});
at("span").addEventListener("change", (event) => {
  span = Number(event.target.value);
  render();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) following?.abort();
  else if (at("ask").hidden) watch();
});
if (!document.hidden) watch();
