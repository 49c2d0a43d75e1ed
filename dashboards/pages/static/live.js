// Live updates. The server says that something changed (server-sent events), the page is fetched again and only what is
// different is put in its place: elements with an id and data-live. Says when it is behind; comes back by itself.

const LATE_MS = 60_000; // silent for so long: ask whether the server is still there
const GATHER_MS = 400; // changes come in bursts
const LEAST_MS = 3_000; // and no page is fetched more often than this
const RETRY_MS = 3_000;

// Parts that take long come after the page: asked for once, put in the place of the element of the same id.
export async function later(root) {
  for (const part of root.querySelectorAll("[data-more][id]")) {
    part.setAttribute("aria-busy", "true");
    const answer = await fetch(new URL(part.dataset.more, location.href)).catch(() => null);
    const next = answer?.ok ? new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id) : null;
    if (next) part.replaceWith(next);
    else part.removeAttribute("aria-busy");
  }
}

const ages = /<time[^>]*>[^<]*<\/time>/g;
const timeless = (html) => html?.replace(ages, "");

// What the server wrote, by id, before scripts touched it: compared with what it writes next.
const written = new Map();
export function remember(root) {
  for (const part of root.querySelectorAll("[data-live][id]")) written.set(part.id, part.outerHTML);
}

export function live(sign, news, cells) {
  let source = null;
  let heard = Date.now();
  let lastId = "";
  let timer = 0;
  let fetched = 0;
  let busy = false;
  let again = false;
  let etag = "";

  const say = (state, text) => {
    if (sign.dataset.state !== state) sign.dataset.state = state;
    if (sign.textContent !== text) sign.textContent = text;
  };
  const soon = () => {
    if (!timer) timer = setTimeout(refresh, Math.max(GATHER_MS, fetched + LEAST_MS - Date.now()));
  };

  async function refresh() {
    timer = 0;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    fetched = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-Graynode-Live": "1" }, cache: "no-cache" });
      if (answer.redirected && new URL(answer.url).pathname === "/signin") {
        close();
        say("behind", "Signed out: reload to sign in");
        return;
      }
      const tag = answer.headers.get("ETag") ?? "";
      if (answer.ok && (!tag || tag !== etag)) {
        etag = tag;
        patch(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    } catch {
      // the stream's own errors say so
    } finally {
      busy = false;
      if (again) {
        again = false;
        soon();
      }
    }
  }

  function patch(next) {
    const told = [];
    // Places that came or went change the grid as a whole.
    const [now, then] = [document.getElementById("grid"), next.getElementById("grid")];
    if (now && then && now.children.length !== then.children.length) {
      now.className = then.className;
      now.replaceChildren(...then.children);
      remember(now);
    }
    for (const fresh of next.querySelectorAll("[data-live][id]")) {
      const old = document.getElementById(fresh.id);
      const html = fresh.outerHTML;
      if (!old || written.get(fresh.id) === html) continue;
      const news = timeless(written.get(fresh.id)) !== timeless(html);
      written.set(fresh.id, html);
      const before = old.querySelector("[data-news]")?.textContent;
      const after = fresh.querySelector("[data-news]")?.textContent;
      if (after && after !== before) told.push(after.trim());
      const open = new Set([...old.querySelectorAll("details[open]")].map((d) => d.textContent));
      const inside = old.contains(document.activeElement) ? document.activeElement : null;
      const found = inside && (inside.id ? `#${CSS.escape(inside.id)}` : `[href="${CSS.escape(inside.getAttribute("href") ?? "")}"]`);
      old.replaceWith(fresh);
      if (news) {
        fresh.classList.add("changed");
        fresh.addEventListener("animationend", () => fresh.classList.remove("changed"), { once: true });
      }
      for (const d of fresh.querySelectorAll("details")) if (open.has(d.textContent)) d.open = true;
      if (found) fresh.querySelector(found)?.focus({ preventScroll: true });
    }
    if (document.title !== next.title) document.title = next.title;
    cells?.collect();
    if (told.length) news.textContent = told.join(". ");
  }

  function listen() {
    close();
    source = new EventSource(lastId ? `/api/v1/stream?last_event_id=${encodeURIComponent(lastId)}` : "/api/v1/stream");
    let first = true;
    source.addEventListener("open", () => {
      heard = Date.now();
      if (!first || sign.dataset.state === "behind") soon(); // whatever was missed meanwhile
      first = false;
      say("live", "live");
    });
    for (const kind of ["fleet", "incident", "reset"]) {
      source.addEventListener(kind, (event) => {
        heard = Date.now();
        lastId = event.lastEventId || lastId;
        say("live", "live");
        soon();
      });
    }
    source.addEventListener("error", () => {
      say("behind", "Behind: connecting again");
      if (source?.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || listen(), RETRY_MS);
    });
  }

  function close() {
    source?.close();
    source = null;
  }

  // A line that broke without a word (a laptop that slept, a cable) looks like a quiet fleet: ask.
  setInterval(async () => {
    if (document.hidden || !source || Date.now() - heard < LATE_MS) return;
    const there = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(5_000) }).catch(() => null);
    if (there?.ok) {
      heard = Date.now();
    } else {
      say("behind", `Behind: no word for ${Math.round((Date.now() - heard) / 1000)} s`);
      listen();
    }
  }, 10_000);
  // A hidden page gives its connection back: browsers allow six a server, and tabs are left open for days.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else if (!source) {
      listen();
      soon();
    }
  });
  // And one that is left: a page kept for the Back button would hold its connection.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    listen();
    soon();
  });
  listen();
}
