// Heat maps on canvas: how full links are, with a cell for each pair of switches or zone and core.

const CELL = [4, 10]; // smallest and largest side of a cell, in pixels
const TALLEST = 6000;
const LIGHT = ["#dfe7ef", "#a9cbe8", "#5b9bd0", "#2a6aa8", "#e0a100", "#c4302b"];
const DARK = ["#2a323c", "#31506e", "#3f7cb0", "#6db3ea", "#e8b73a", "#ff6b63"];
const LIMITS = [0, 250, 500, 750, 1000, Infinity]; // upper limits of the bands, in thousandths
export const BANDS = ["idle", "to 25 %", "to 50 %", "to 75 %", "to 100 %", "above 100 %"];
const OFF = {light: ["#ffffff", "#1b1f24"], dark: ["#14181d", "#f4f6f8"]};

const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colours = () => (dark() ? DARK : LIGHT);
const band = (value) => (value <= 0 ? 0 : LIMITS.findIndex((limit, at) => at > 0 && value <= limit));
export const bandColour = (at) => colours()[at];

// Returns the grids of a fabric. Each has rows, columns, and cells that name links.
export function grids(structure) {
  const {kind, zone, id} = structure.switch, {a, b} = structure.link;
  const zones = new Map();
  const cores = new Map();
  const zoneOf = (at) => (zone[at] < 0 ? "" : structure.zones[zone[at]]);
  const grid = (name) => {
    if (!zones.has(name)) zones.set(name, {name, rows: new Map(), columns: new Map(), links: []});
    return zones.get(name);
  };
  const core = {rows: new Map(), columns: cores, links: []};
  const others = {rows: new Map(), columns: new Map(), links: []};
  const place = (map, key, label) => {
    if (!map.has(key)) map.set(key, {at: map.size, label, key});
    return map.get(key).at;
  };
  for (let link = 0; link < a.length; link++) {
    let low = a[link], high = b[link], turned = false;
    const rank = {leaf: 1, spine: 2, core: 3, switch: 4};
    if (rank[kind[low]] > rank[kind[high]]) [low, high, turned] = [high, low, true];
    const pair = `${kind[low]}-${kind[high]}`;
    if (pair === "spine-core") {
      const from = zoneOf(low);
      core.links.push([place(core.rows, from, `zone ${from}`), place(cores, high, id[high]), link, turned]);
    } else if (pair === "leaf-spine") {
      const of = grid(zoneOf(low));
      of.links.push([place(of.rows, low, id[low]), place(of.columns, high, id[high]), link, turned]);
    } else {
      others.links.push([place(others.rows, low, id[low]), place(others.columns, high, id[high]), link, turned]);
    }
  }
  const found = [...zones.values()].map((one) => ({...one, title: one.name ? `Zone ${one.name}: leaves × spines` : "Leaves × spines"}));
  if (core.links.length) found.push({...core, title: "Zones × cores"});
  if (others.links.length) found.push({...others, title: "Other links"});
  return found.map(finished);
}

function finished(grid) {
  const width = grid.columns.size, cells = new Map();
  for (const [row, column, link, turned] of grid.links) {
    const at = row * width + column;
    if (!cells.has(at)) cells.set(at, []);
    cells.get(at).push([link, turned]);
  }
  const named = (map) => [...map.values()].map((one) => one.label);
  return {title: grid.title, rows: named(grid.rows), columns: named(grid.columns), cells};
}

export class Heatmap {
  // `tell(grid, row, column, cell)` describes a cell in words; `open(cell)` opens its page.
  constructor(grid, tell, open) {
    this.grid = grid;
    this.tell = tell;
    this.open = open;
    this.loads = null;
    this.marks = {down: new Set(), drained: new Set()};
    this.way = "both";
    this.cursor = null;
    this.frame = document.createElement("div"); // around the cell at the cursor: to draw all cells again for each step takes too long
    this.frame.className = "cursor";
    this.frame.hidden = true;
    const {rows, columns} = grid;
    this.side = Math.max(CELL[0], Math.min(CELL[1], Math.floor(TALLEST / rows.length), Math.floor(TALLEST / columns.length)));
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "heat map");
    this.canvas.setAttribute("aria-label", `${grid.title}: ${rows.length} rows, ${columns.length} columns. Arrow keys move, Enter opens. The tables below say the same.`);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => { this.point(event); this.follow(); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.cursor || this.move(0, 0));
    this.size();
  }

  size() {
    const {rows, columns} = this.grid, ratio = Math.min(devicePixelRatio || 1, 2);
    this.canvas.width = columns.length * this.side * ratio;
    this.canvas.height = rows.length * this.side * ratio;
    this.canvas.style.width = `${columns.length * this.side}px`;
    this.canvas.style.height = `${rows.length * this.side}px`;
    this.ratio = ratio;
  }

  // Returns the load of the fullest link of a cell, in thousandths. Up is away from the lower tier.
  value(cell) {
    let most = 0;
    for (const [link, turned] of cell) {
      const up = (turned ? this.loads.back : this.loads.forth)[link];
      const down = (turned ? this.loads.forth : this.loads.back)[link];
      most = Math.max(most, this.way === "down" ? 0 : up, this.way === "up" ? 0 : down);
    }
    return most;
  }

  draw() {
    const {grid, side, ratio} = this, pen = this.canvas.getContext("2d"), width = grid.columns.length;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width * side, grid.rows.length * side);
    const paint = colours(), [paper, ink] = OFF[dark() ? "dark" : "light"], gap = side > 5 ? 1 : 0.5;
    const bands = paint.map(() => []), off = [];
    for (const [at, cell] of grid.cells) {
      if (cell.some(([link]) => this.marks.down.has(link) || this.marks.drained.has(link))) off.push(at);
      else bands[this.loads ? band(this.value(cell)) : 0].push(at);
    }
    bands.forEach((cells, which) => {
      pen.fillStyle = paint[which];
      for (const at of cells) pen.fillRect((at % width) * side, Math.floor(at / width) * side, side - gap, side - gap);
    });
    for (const at of off) {
      const x = (at % width) * side, y = Math.floor(at / width) * side;
      pen.fillStyle = ink;
      pen.fillRect(x, y, side - gap, side - gap);
      pen.strokeStyle = paper;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + side - gap, y + side - gap);
      pen.stroke();
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const clip = (value, most) => Math.max(0, Math.min(most - 1, Math.floor(value / this.side)));
    this.move(clip(event.clientY - box.top, this.grid.rows.length), clip(event.clientX - box.left, this.grid.columns.length));
  }

  move(row, column) {
    if (this.cursor && this.cursor[0] === row && this.cursor[1] === column) return;
    this.cursor = [row, column];
    const {offsetLeft: left, offsetTop: top} = this.canvas, {style} = this.frame;
    [style.left, style.top] = [`${left + column * this.side - 2}px`, `${top + row * this.side - 2}px`];
    style.width = style.height = `${this.side + 3}px`;
    this.frame.hidden = false;
    this.tell(this.grid, row, column, this.cell());
  }

  cell() {
    return this.cursor ? this.grid.cells.get(this.cursor[0] * this.grid.columns.length + this.cursor[1]) : undefined;
  }

  follow() {
    const cell = this.cell();
    if (cell) this.open(cell);
  }

  key(event) {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (event.key === "Enter") this.follow();
    if (!step) return;
    event.preventDefault();
    const [row, column] = this.cursor || [0, 0], {rows, columns} = this.grid;
    this.move(Math.max(0, Math.min(rows.length - 1, row + step[0])), Math.max(0, Math.min(columns.length - 1, column + step[1])));
    this.frame.scrollIntoView({block: "nearest", inline: "nearest"}); // maps are taller than windows
  }
}
