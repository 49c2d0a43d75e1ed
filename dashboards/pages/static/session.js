// Sign in with a token, typed or from the address's fragment (which no server and no log sees), and out.
import { csrf, problem } from "./act.js";

async function open(token, form) {
  const outcome = form.querySelector(".outcome");
  const button = form.querySelector("button");
  button.disabled = true;
  outcome.className = "outcome";
  outcome.textContent = "Signing in …";
  try {
    const answer = await fetch("/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) {
      const next = new URL(form.dataset.next || "/", location.origin);
      location.replace(next.origin === location.origin ? next : "/");
      return;
    }
    outcome.textContent = await problem(answer);
  } catch {
    outcome.textContent = "The server does not answer. Is graynode serve running?";
  }
  outcome.className = "outcome bad";
  button.disabled = false;
}

export function signIn(form) {
  if (!form) return;
  const told = new URLSearchParams(location.hash.slice(1)).get("token");
  if (told) {
    history.replaceState(null, "", location.pathname + location.search);
    open(told, form);
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    open(form.elements.token.value.trim(), form);
  });
}

export function signOut(button) {
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await fetch("/session", { method: "DELETE", headers: { "X-CSRF-Token": csrf() } }).catch(() => null);
    location.assign("/signin");
  });
}
