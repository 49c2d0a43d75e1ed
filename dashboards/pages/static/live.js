// Live updates. The server says that something changed (server-sent events), the page is fetched again and only what is
// different is put in its place: elements with an id and data-live. Says when it is behind; comes back by itself.

const LATE_MS = 60_000; // the server says something at least every 15 s; four missed words are silence
const GATHER_MS = 400; // changes come in bursts
const LEAST_MS = 3_000; // and no page is fetched more often than this
const RETRY_MS = 3_000;

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
    for (const fresh of next.querySelectorAll("[data-live][id]")) {
      const old = document.getElementById(fresh.id);
      if (!old || old.outerHTML === fresh.outerHTML) continue;
      const before = old.querySelector("[data-news]")?.textContent;
      const after = fresh.querySelector("[data-news]")?.textContent;
      if (after && after !== before) told.push(after.trim());
      const open = new Set([...old.querySelectorAll("details[open]")].map((d) => d.textContent));
      const inside = old.contains(document.activeElement) ? document.activeElement : null;
      const found = inside && (inside.id ? `#${CSS.escape(inside.id)}` : `[href="${CSS.escape(inside.getAttribute("href") ?? "")}"]`);
      fresh.classList.add("changed");
      old.replaceWith(fresh);
      fresh.addEventListener("animationend", () => fresh.classList.remove("changed"), { once: true });
      for (const d of fresh.querySelectorAll("details")) if (open.has(d.textContent)) d.open = true;
      if (found) fresh.querySelector(found)?.focus({ preventScroll: true });
    }
    // Places that came or went change the grid as a whole.
    const [now, then] = [document.getElementById("grid"), next.getElementById("grid")];
    if (now && then && now.children.length !== then.children.length) now.replaceChildren(...then.children);
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
    for (const kind of ["fleet", "incident", "alive"]) {
      source.addEventListener(kind, (event) => {
        heard = Date.now();
        lastId = event.lastEventId || lastId;
        say("live", "live");
        if (kind !== "alive") soon();
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

  setInterval(() => {
    if (document.hidden || !source) return;
    const quiet = Date.now() - heard;
    if (quiet > LATE_MS) say("behind", `Behind: no word for ${Math.round(quiet / 1000)} s`);
  }, 5_000);
  // A hidden page gives its connection back: browsers allow six a server, and tabs are left open for days.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else if (!source) {
      listen();
      soon();
    }
  });
  listen();
}
