// What every page starts: theme switch, live updates, the grid's keys, forms that act, sign in and out.
import { acting } from "./act.js";
import { grid } from "./grid.js";
import { later, live, remember } from "./live.js";
import { pictures } from "./picture.js";
import { signIn, signOut } from "./session.js";
import { theme } from "./theme.js";

theme(document.getElementById("theme"));
signIn(document.getElementById("signin"));
if (document.body.hasAttribute("data-signed-in")) {
  signOut(document.getElementById("signout"));
  remember(document);
  acting(document);
  pictures(document);
  const cells = grid(document.getElementById("grid"), document.getElementById("pointed"));
  later(document);
  live(document.getElementById("live"), document.getElementById("news"), cells);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    document.getElementById("find").focus();
  });
}
