// Light, dark, or as the system wishes. Kept in a cookie, so that the server writes the page in the right one at once.
const ORDER = ["auto", "light", "dark"];

export function theme(button) {
  if (!button) return;
  const root = document.documentElement;
  const show = () => {
    button.textContent = `Theme: ${root.dataset.theme}`;
  };
  button.hidden = false;
  show();
  button.addEventListener("click", () => {
    root.dataset.theme = ORDER[(ORDER.indexOf(root.dataset.theme) + 1) % ORDER.length];
    document.cookie = `graynode_theme=${root.dataset.theme}; path=/; max-age=31536000; SameSite=Strict`;
    show();
  });
}
