// Forms that change something: their fields go to the API as JSON, with the session's CSRF token; the outcome is said
// in place. Nothing is sent twice, and what was typed stays where it was refused.

export function csrf() {
  return document.querySelector('meta[name="graynode-csrf"]')?.content ?? "";
}

export async function problem(answer) {
  try {
    const told = await answer.json();
    return told.detail || told.title || `refused (${answer.status})`;
  } catch {
    return `refused (${answer.status})`;
  }
}

async function send(form) {
  const outcome = form.querySelector(".outcome");
  const button = form.querySelector("button");
  button.disabled = true;
  outcome.className = "outcome";
  outcome.textContent = "Sending …";
  let good = false;
  try {
    const answer = await fetch(form.dataset.api, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf() },
      body: JSON.stringify(Object.fromEntries(new FormData(form))),
    });
    good = answer.ok;
    if (good) {
      const told = await answer.json().catch(() => ({}));
      outcome.textContent = told.said || "Done. It is on the bus and appears below when it is stored.";
      form.reset();
    } else {
      outcome.textContent = await problem(answer);
    }
  } catch {
    outcome.textContent = "The server does not answer; nothing was sent. Try again.";
  }
  outcome.className = `outcome ${good ? "good" : "bad"}`;
  button.disabled = false;
}

export function acting(root) {
  for (const form of root.querySelectorAll("form[data-api]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send(form);
    });
  }
}
