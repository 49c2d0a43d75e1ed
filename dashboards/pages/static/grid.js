// Keys and pointer in the fleet grid: one stop of the Tab key, arrows move by what is seen, the cell's words are shown.

const MOVES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);

export function grid(root, pointed) {
  if (!root) return null;
  let cells = [];
  let current = null;

  const hold = (cell) => {
    if (current?.isConnected) current.tabIndex = -1;
    current = cell;
    if (cell) cell.tabIndex = 0;
  };
  const collect = () => {
    cells = [...root.querySelectorAll(".cells > a")];
    for (const cell of cells) cell.tabIndex = -1;
    hold(cells.find((cell) => current && cell.href === current.href) ?? cells[0] ?? null);
  };
  const vertical = (from, way) => {
    // The nearest cell in the next line above or below, by the middle of each.
    const here = from.getBoundingClientRect();
    const x = here.left + here.width / 2;
    let best = null;
    let bestY = Infinity;
    let bestX = Infinity;
    for (let i = cells.indexOf(from) + way; i >= 0 && i < cells.length; i += way) {
      const box = cells[i].getBoundingClientRect();
      const y = way * (box.top - here.top);
      if (y <= here.height / 2) continue;
      if (y > bestY + here.height / 2) {
        if (Math.abs(i - cells.indexOf(best)) > 400) break;
        continue;
      }
      const dx = Math.abs(box.left + box.width / 2 - x);
      if (y < bestY - here.height / 2 || dx < bestX) [best, bestY, bestX] = [cells[i], y, dx];
    }
    return best;
  };

  root.addEventListener("keydown", (event) => {
    const from = event.target.closest(".cells > a");
    if (!from || !MOVES.has(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = cells.indexOf(from);
    const to = {
      ArrowLeft: () => cells[at - 1],
      ArrowRight: () => cells[at + 1],
      ArrowUp: () => vertical(from, -1),
      ArrowDown: () => vertical(from, 1),
      Home: () => cells[0],
      End: () => cells.at(-1),
    }[event.key]();
    event.preventDefault();
    if (!to) return;
    hold(to);
    to.focus();
  });
  const say = (event) => {
    const cell = event.target.closest?.(".cells > a");
    if (!cell) return;
    pointed.textContent = cell.classList.contains("node") ? cell.innerText.replace(/\s+/g, " ") : cell.textContent;
  };
  root.addEventListener("focusin", (event) => {
    const cell = event.target.closest(".cells > a");
    if (cell) hold(cell);
    say(event);
  });
  if (root.classList.contains("dense")) root.addEventListener("pointerover", say);
  collect();
  return { collect };
}
