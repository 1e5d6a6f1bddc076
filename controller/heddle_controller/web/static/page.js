// The page: views by address, kept up to date by one stream of server-sent events.
import {BANDS, Heatmap, bandColour, grids} from "/static/heatmap.js";

const QUIET_SECONDS = 6; // after so long without an event, the page may be out of date
const AGAIN_SECONDS = 3;
const DEAD_SECONDS = 18; // after so long without an event, the connection is given up: a network that forgot it tells neither end
const MEASURE = 5000; // milliseconds between two reads of measurements
const MOST_NAMES = 50; // a form offers no more to complete
const PAUSE = 2000; // milliseconds from an answer until the same is asked again
const VIEWS = [["", "Overview"], ["map", "Fabric"], ["health", "Doctor"], ["jobs", "Jobs"], ["flows", "Flows"], ["plans", "Plans"], ["events", "Events"], ["what-if", "What if"], ["drills", "Drills"]];
const main = document.getElementById("main");
const live = document.getElementById("live");
const nav = document.getElementById("nav");

// ---- small helpers; text is always set as text, so that markup in names has no effect

function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined) made.append(child);
  return made;
}

const percent = (ratio) => (ratio === null || ratio === undefined ? "–" : `${(100 * ratio).toFixed(1)} %`);
const gbps = (value) => `${Number(value.toFixed(1))} Gbit/s`;
const moment = (text) => h("time", {datetime: text}, new Date(text).toLocaleString());
const clock = (seconds) => moment(new Date(1000 * seconds).toISOString());
const many = (count, one, more) => `${Number(count).toLocaleString("en")} ${Number(count) === 1 ? one : more}`;
const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined)).toString();
const at = (fabric, view = "", values = {}) => {
  const asked = query(values);
  return `/fabrics/${encodeURIComponent(fabric)}${view ? `/${view}` : ""}${asked ? `?${asked}` : ""}`;
};
const to = (href, ...text) => h("a", {href}, ...text);

class Refused extends Error {
  constructor(status, told) {
    super(told.message || `the controller answered ${status}`);
    this.status = status;
  }
}

let asking = new AbortController(); // ends the requests that wait on connections that are given up

async function ask(path, given) {
  const answer = await fetch(path, {...given, signal: asking.signal}).catch(() => { throw new Error("the controller does not answer"); });
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({}))); // a proxy answers in HTML
  return answer.json();
}

// Whether to ask again: the network or the controller failed, and did not refuse what was asked.
const mayPass = (error) => !(error instanceof Refused) || error.status === 429 || error.status >= 500;

const api = (fabric, what, values = {}) => ask(`/api/fabrics/${encodeURIComponent(fabric)}/${what}?${query(values)}`);

// All records of a list that is answered in pages.
async function all(kind, list) {
  const found = [];
  for (let page = null; page !== ""; ) {
    const told = await list(page || "");
    found.push(...told[kind]);
    page = told.next_page_token;
  }
  return found;
}

// Replaces the content of an element; null and undefined children are left out. A link or a table
// keeps the focus, and tables stay where they were scrolled to.
function fill(element, ...children) {
  const name = (one) => one.getAttribute("href") || one.getAttribute("aria-label");
  const named = (wanted) => [...element.querySelectorAll("a, .wide")].filter((one) => name(one) === wanted);
  const held = element.contains(document.activeElement) ? document.activeElement : null;
  const place = held ? named(name(held)).indexOf(held) : -1; // several links may lead to the same view
  const tables = [...element.querySelectorAll(".wide")].filter((one) => one.scrollLeft);
  const scrolled = tables.map((one) => [name(one), one.scrollLeft]);
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined));
  for (const [table, left] of scrolled) for (const one of named(table)) one.scrollLeft = left;
  if (place >= 0) { const now = named(name(held)); (now[place] || now[0])?.focus({preventScroll: true}); }
}

function table(caption, heads, rows, empty = "None.") {
  if (!rows.length) return h("p", {class: "note"}, `${caption}: ${empty}`);
  const number = (head) => (head.startsWith("#") ? "number" : null);
  // Focusable, so that keys scroll a table that is wider than the screen.
  return h("div", {class: "wide", role: "group", "aria-label": caption, tabindex: "0"}, h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", {scope: "col", class: number(head)}, head.replace(/^#/, ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h("td", {class: number(heads[place])}, cell)))))));
}

const facts = (pairs) => h("dl", {class: "facts"}, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
const linkName = (link) => [link.source, link.target, ...(link.key ? [link.key] : [])].join(",");
const wayOf = (path) => path.nodes.map((node, place) => (place && !["", "0"].includes(path.keys[place - 1]) ? `[${path.keys[place - 1]}]${node}` : node)).join(" → ");
const linkTo = (fabric, link) => (link ? to(at(fabric, "link", {source: link.source, target: link.target, key: link.key}), linkName(link)) : "–");
const lastPart = (record) => record.name.split("/").pop();
const flowTo = (fabric, flow) => to(at(fabric, "flow", {id: flow}), flow);
const jobTo = (fabric, job) => (job ? to(at(fabric, "job", {id: job}), job) : "none");
const switchTo = (fabric, id) => to(at(fabric, "switch", {id}), id);

// ---- the stream of events from the controller

const feed = {fabric: null, source: null, overview: null, tried: 0, heard: 0, refused: "", stale: 0};

function follow(fabric) {
  if (feed.fabric === fabric && feed.source && feed.source.readyState !== EventSource.CLOSED) return;
  feed.source?.close();
  if (feed.fabric !== fabric) Object.assign(feed, {overview: null, heard: 0, refused: ""});
  feed.fabric = fabric;
  if (!fabric) { feed.source = null; return; }
  const source = new EventSource(`/api/fabrics/${encodeURIComponent(fabric)}/stream`);
  feed.source = source;
  feed.tried = Date.now();
  const heard = () => { feed.heard = Date.now(); feed.refused = ""; };
  source.addEventListener("overview", (event) => {
    heard();
    feed.overview = JSON.parse(event.data);
    feed.stale = feed.overview.stale_seconds;
    tellLive();
    shown.update?.(feed.overview);
  });
  source.addEventListener("beat", (event) => { heard(); feed.stale = Number(event.data); tellLive(); });
  source.addEventListener("refused", (event) => { feed.refused = JSON.parse(event.data); source.close(); tellLive(); });
  source.addEventListener("error", () => { tellLive(); if (source.readyState === EventSource.CLOSED) hearWhy(source); });
}

// A stream does not say why it was refused, but the same request does. Who may not look any more gets the login page.
async function hearWhy(source) {
  const answer = await fetch(source.url).catch(() => null);
  if (answer?.ok) answer.body.cancel();
  else if (answer?.status === 401) location.reload();
  else if (answer && feed.source === source) { feed.refused = new Refused(answer.status, await answer.json().catch(() => ({}))).message; tellLive(); }
}

function tellLive() {
  const silent = (Date.now() - feed.heard) / 1000;
  const open = feed.source?.readyState === EventSource.OPEN;
  let text = "", age = "", stale = true;
  if (!feed.fabric) stale = false;
  else if (feed.refused) text = feed.refused;
  else if (!feed.heard) text = "Connecting …";
  else if (!open || silent > QUIET_SECONDS) [text, age] = ["Not live", `: last heard ${Math.round(silent)} s ago`];
  else if (feed.stale > 0) [text, age] = ["Store lost", `: shown is what was known ${Math.round(feed.stale)} s ago`];
  else { stale = false; text = feed.overview && !feed.overview.leader.here ? "Live, from a follower" : "Live"; }
  // A reader says the state when it changes; it does not say how the seconds pass.
  [text, age].forEach((part, place) => { if (live.children[place].textContent !== part) live.children[place].textContent = part; });
  live.classList.toggle("stale", stale);
}

setInterval(() => {
  tellLive();
  const dead = Date.now() - Math.max(feed.tried, feed.heard) > 1000 * DEAD_SECONDS;
  const over = feed.source?.readyState === EventSource.CLOSED && Date.now() - feed.tried > 1000 * AGAIN_SECONDS;
  if (!feed.fabric || !(dead || over)) return;
  if (dead) { asking.abort(new Error("the connection was lost")); asking = new AbortController(); }
  feed.source?.close();
  feed.source = null;
  follow(feed.fabric);
}, 1000);

// A browser may keep a page that was left, with its stream, and has only six connections to a host.
addEventListener("pagehide", () => feed.source?.close());
addEventListener("pageshow", (event) => { if (event.persisted) follow(feed.fabric); });

// ---- views: each returns an element, and may be updated with each new overview

function overviewView(fabric) {
  const box = h("div", {}, h("p", {}, "Waiting for the controller …"));
  const update = (told) => {
    const {plan, jobs, agents, links, leader} = told;
    const words = {good: "All is well", warn: "Look at this", bad: "Something is wrong"};
    fill(
      box,
      h("div", {class: `verdict ${told.verdict.level}`, id: "verdict"}, h("strong", {}, words[told.verdict.level]),
        told.verdict.sentences.map((text) => h("p", {}, text))),
      facts([
        ["NICs", told.nics.toLocaleString("en")],
        ["Switches with an agent here", `${agents.connected.toLocaleString("en")} of ${agents.expected.toLocaleString("en")}`],
        ["Plan", plan ? to(at(fabric, "plans"), `${plan.generation}`) : "none"],
        ["Switches that hold it", plan ? `${plan.programmed} of ${plan.switches}` : "–"],
        ["Flows routed", plan ? plan.routed.toLocaleString("en") : "–"],
        ["Flows without a path", plan ? plan.unrouted.toLocaleString("en") : "–"],
        ["Links down", links.down_count.toLocaleString("en")],
        ["Leader", leader.name ? `${leader.name}${leader.here ? " (this controller)" : ""}` : "none"],
      ]),
      h("h2", {}, "Worst link of each tier"),
      table("How full it is, and the least that any plan could reach", ["Tier", "#Worst", "#Proven least", "Link"],
        told.tiers.map((tier) => [tier.tier, percent(tier.worst), percent(tier.bound), linkTo(fabric, tier.link)]), "no plan yet."),
      h("h2", {}, "Slowest flow"),
      told.slowest
        ? h("p", {id: "slowest"}, flowTo(fabric, told.slowest.flow), ...(told.slowest.job ? [" of ", jobTo(fabric, told.slowest.job)] : []), ` gets ${percent(told.slowest.share)} of its ${gbps(told.slowest.gbps)}: ${told.slowest.share < 1 ? "the link that limits it" : "its fullest link"} is `, linkTo(fabric, told.slowest.link), ` (${percent(told.slowest.utilization)}).`, plan && told.slowest.generation !== plan.generation ? ` Of plan ${told.slowest.generation}: newer ones follow each other.` : "")
        : h("p", {class: "note"}, "No flow has a path yet."),
      h("h2", {}, "Jobs"),
      facts(Object.entries(jobs.count).map(([state, count]) => [state.toLowerCase(), to(at(fabric, "jobs"), `${count}`)])),
      jobs.degraded.length ? table("Degraded jobs", ["Job", "Why"], jobs.degraded.map((one) => [jobTo(fabric, one.job), one.reason])) : null,
      links.down.length ? h("h2", {}, "Links down") : null,
      links.down.length ? h("ul", {id: "down"}, links.down.map((link) => h("li", {}, linkTo(fabric, link)))) : null,
      links.unwell.length ? table("Links that are not well", ["Link", "Why"], links.unwell.map((link) => [linkTo(fabric, link), link.reason])) : null,
      agents.missing.length ? h("h2", {}, "Agents without a session here") : null,
      agents.missing.length ? h("p", {}, agents.missing.map((id, place) => [place ? ", " : "", switchTo(fabric, id)]), agents.missing_count > agents.missing.length ? ` and ${agents.missing_count - agents.missing.length} more` : "") : null,
      h("h2", {}, "Last events"),
      eventTable(fabric, told.events.slice(-8), told.events),
    );
  };
  return {title: `Fabric ${fabric}`, box, update};
}

function eventTable(fabric, events, all) {
  const known = new Map(all.map((one) => [one.number, one]));
  const why = (one) => (one.because.length ? h("ul", {}, one.because.map((number) => h("li", {}, known.get(number)?.text || `event ${number}`))) : "–");
  return table("The newest first; seen by this controller since it began", ["#No.", "Time", "What", "After"],
    [...events].reverse().map((one) => [`${one.number}`, clock(one.time), one.text, why(one)]));
}

function eventsView(fabric) {
  const box = h("div");
  return {title: "Events", box, update: (told) => fill(box, eventTable(fabric, told.events, told.events))};
}

const planTo = (fabric, before, after, text) => to(at(fabric, "comparison", {before, after}), text);

// Describes why a plan followed the one before.
function causes(found) {
  const told = found.map((one) => {
    const kind = one.kind.toLowerCase().replaceAll("_", " "), more = one.count - one.names.length;
    return one.names.length ? `${kind}: ${one.names.join(", ")}${more > 0 ? ` and ${more} more` : ""}` : kind;
  });
  return told.length ? told.join("; ") : "–";
}

function plansView(fabric, values) {
  const newest = h("div"), page = values.get("page") || "";
  const refused = (error) => { if (error.status === 403) return null; throw error; };
  const both = async () => ({...await api(fabric, "plans", {page}), ...(await api(fabric, "changes").catch(refused) || {changes: null})});
  const view = asked("Plans", both, ({plans, changes, next_page_token: next}) => [
    h("h2", {}, "Plans over time"),
    table("Which plan followed, why, and what moved", ["Time", "Plan", "Why", "#Flows moved", "#Worst link", "#Proven least", "#Without path", "#Solved in"],
      plans.map((one, place) => [moment(one.commit_time), one.generation, causes(one.causes),
        plans[place + 1] ? planTo(fabric, plans[place + 1].generation, one.generation, `${one.changed_count}`) : `${one.changed_count}`,
        percent(one.max_utilization), percent(one.lower_bound), `${one.unrouted_count}`, `${one.solve_seconds.toFixed(3)} s`]), "no plan yet."),
    next ? h("p", {}, to(at(fabric, "plans", {page: next}), "Earlier plans")) : null,
    h("h2", {}, "What clients asked for"),
    changes === null ? h("p", {class: "note"}, "Who asked for changes is told to operators alone.")
      : table("The newest first; logs and traces name the same request", ["Time", "Who", "What", "Of", "Request"],
        changes.map((one) => [moment(one.time), one.actor || "–", one.action.replaceAll("_", " "), one.name.split("/").slice(2).join("/") || "the fabric", h("code", {}, one.request)])),
  ]);
  const update = (told) => {
    const {plan} = told;
    fill(newest, plan ? facts([
      ["Newest plan", `${plan.generation}`], ["Committed", clock(plan.commit_time)], ["Solved in", `${plan.solve_seconds.toFixed(3)} s`],
      ["Flows moved by it", plan.changed.toLocaleString("en")], ["Entries", Number(plan.entries).toLocaleString("en")], ["Epoch of its leader", `${plan.epoch}`],
      ["Bound proven by", plan.proof],
    ]) : h("p", {}, "There is no plan yet."));
    view.update(told);
  };
  return {title: "Plans", box: h("div", {}, newest, view.box), update};
}

function comparisonView(fabric, values) {
  const before = values.get("before") || "", after = values.get("after") || "";
  const paths = (found) => (found.length ? found.map((path) => h("div", {}, wayOf(path))) : "no path");
  return asked(`Plan ${before} and plan ${after || "now"}`, () => api(fabric, "comparison", {before, after}), (told) => [
    h("p", {id: "moved"}, `${many(told.moved_count, "flow", "flows")} moved. Why: ${causes(told.causes)}.`),
    table("The plans", ["", `#Plan ${told.before.generation}`, `#Plan ${told.after.generation}`], [
      ["Worst link", percent(told.before.certificate?.max_utilization), percent(told.after.certificate?.max_utilization)],
      ["Flows without a path", `${told.before.unrouted_count}`, `${told.after.unrouted_count}`]]),
    table("Jobs that fare otherwise", ["Job", "#Slowest flow got", "#Gets"], told.jobs.map((one) => [jobTo(fabric, one.job), ...[one.before, one.after].map((fare) => (fare ? percent(fare.share) : "–"))])),
    table(told.moved.length < told.moved_count ? `${told.moved.length} of the flows that moved` : "Flows that moved", ["Flow", "Was", "Is"],
      told.moved.map((one) => [flowTo(fabric, one.flow), paths(one.before), paths(one.after)])),
  ]);
}

function drillsView() {
  return asked("Drills", () => ask("/api/reports"), (told) => {
    if (!told.named) return h("p", {}, "This controller shows no reports: start it with --web-reports FOLDER, the folder that heddle-emulator drill --report writes.");
    const whole = told.reports.find((one) => one.name === "index.html");
    return [
      whole ? h("p", {}, to("/reports/index.html", "How all of them ended")) : null,
      table("Reports of drills and campaigns, the newest first", ["Report", "Written"],
        told.reports.filter((one) => one !== whole).map((one) => [to(`/reports/${encodeURIComponent(one.name)}`, one.name.replace(/\.html$/, "")), moment(new Date(1000 * one.time).toISOString())]),
        "none yet: heddle-emulator drill FILE --report FOLDER writes them."),
    ];
  });
}

function mapView(fabric) {
  const said = h("p", {id: "cell", role: "status"}, "Point at a cell, or use the arrow keys in a map.");
  const panels = h("div", {class: "panels"}), tables = h("div"), note = h("p", {class: "note"}, "Loading …");
  const way = h("select", {id: "way"}, [["both", "the fuller way"], ["up", "upwards"], ["down", "downwards"]].map(([value, text]) => h("option", {value}, text)));
  const what = h("select", {id: "what"}, [["planned", "as planned"], ["measured", "as measured"]].map(([value, text]) => h("option", {value}, text)));
  const box = h("div", {},
    h("p", {}, h("label", {for: "what"}, "Links "), what, h("label", {for: "way"}, " seen "), way),
    scale(), note, panels, said, h("h2", {}, "Fullest links"), tables);
  let structure = null, loads = null, measured = null, maps = [], wanted = "", turn = 0, busy = false, told = null;
  const name = (link) => ({source: structure.switch.id[structure.link.a[link]], target: structure.switch.id[structure.link.b[link]], key: structure.link.key[link]});
  const open = (cell) => go(at(fabric, "link", name(worst(cell))));
  const worst = (cell) => cell.map(([link]) => link).sort((one, two) => full(two) - full(one))[0];
  const seen = () => (what.value === "measured" ? measured : loads);
  const full = (link, of = seen()) => (of ? Math.max(of.forth[link], of.back[link]) : 0);
  const said_full = (link) => (measured && what.value === "measured" ? `${(full(link) / 10).toFixed(1)} % full as measured, ${(full(link, loads) / 10).toFixed(1)} % as planned` : `${(full(link) / 10).toFixed(1)} % full`);
  const words = (grid, row, column, cell) => {
    const where = `${grid.rows[row]} × ${grid.columns[column]}: `;
    if (!cell) { said.replaceChildren(where, "no link"); return; }
    const link = worst(cell), off = cell.some(([one]) => told?.links.marks.down.includes(one)) ? ", down" : "";
    const fuller = loads ? said_full(link) : "no plan yet";
    said.replaceChildren(where, linkTo(fabric, name(link)), ` ${many(cell.length, "link", "links")}, ${fuller}${off}`);
  };
  const paint = () => {
    const marks = {down: new Set(told?.links.marks.down), drained: new Set(told?.links.marks.drained)};
    for (const map of maps) { map.loads = seen(); map.marks = marks; map.way = way.value; map.draw(); }
    note.textContent = loads ? `Plan ${loads.generation}, ${many(structure.link.a.length, "link", "links")} between switches.${sources()}` : "There is no plan yet.";
    const order = seen() ? [...seen().forth.keys()].sort((one, two) => full(two) - full(one)).slice(0, 30).filter((link) => full(link) > 0) : [];
    const both = measured && what.value === "measured", of = (told, link) => [percent(told.forth[link] / 1000), percent(told.back[link] / 1000)];
    fill(tables, table("The thirty fullest", ["Link", ...(both ? ["#Measured there", "#Measured back"] : []), "#Planned there", "#Planned back", "#Speed"],
      order.map((link) => [linkTo(fabric, name(link)), ...(both ? of(measured, link) : []), ...of(loads, link), gbps(structure.link.gbps[link])])));
    box.dataset.painted = loads ? `${loads.epoch}.${loads.generation}` : "none";
    box.dataset.measured = both ? `${measured.measured}` : "";
  };
  const sources = () => {
    if (!measured || what.value !== "measured") return "";
    if (!measured.measured) return " No flow was measured yet: agents report counters, hosts may report rates.";
    return ` ${measured.measured.toLocaleString("en")} of ${many(measured.flows, "flow has a rate", "flows have a rate")}, the oldest of ${new Date(1000 * measured.time).toLocaleTimeString()}; each is laid on the paths of its plan.`;
  };
  const fetchAll = async () => {
    if (busy) return;
    busy = true;
    const again = wanted + turn;
    try {
      const none = (error) => { if (error.status === 404) return null; throw error; };
      const [shape, filled, sent] = await Promise.all([
        structure?.revision === told?.revision && structure ? structure : api(fabric, "structure"),
        api(fabric, "loads").catch(none),
        what.value === "measured" ? api(fabric, "measured").catch(none) : null,
      ]);
      if (shape !== structure) {
        structure = shape;
        maps = grids(structure).map((grid) => new Heatmap(grid, words, open));
        panels.replaceChildren(...maps.map((map) => h("figure", {}, h("figcaption", {}, map.grid.title), map.canvas, map.frame)));
      }
      [loads, measured] = [filled, sent];
      paint();
    } catch (error) { note.textContent = error.message; if (mayPass(error)) turn++; }
    setTimeout(() => { const late = again !== wanted + turn; busy = false; if (late && box.isConnected) fetchAll(); }, PAUSE);
  };
  way.addEventListener("change", paint);
  what.addEventListener("change", () => { turn++; fetchAll(); });
  const measuring = setInterval(() => { if (!box.isConnected) clearInterval(measuring); else if (what.value === "measured") { turn++; fetchAll(); } }, MEASURE);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (box.isConnected) { box.querySelector(".scale").replaceWith(scale()); paint(); } });
  fetchAll();
  const update = (now) => {
    told = now;
    const next = `${now.revision}/${now.plan ? `${now.plan.epoch}.${now.plan.generation}` : ""}`;
    if (next !== wanted) { wanted = next; fetchAll(); } else if (structure) paint();
  };
  return {title: "Fabric", box, update};
}

function scale() {
  const swatch = (colour) => { const one = h("canvas", {width: 16, height: 16, "aria-hidden": "true"}); const pen = one.getContext("2d"); pen.fillStyle = colour; pen.fillRect(0, 0, 16, 16); return one; };
  return h("ul", {class: "scale", "aria-label": "Colours"}, BANDS.map((text, which) => h("li", {}, swatch(bandColour(which)), text)), h("li", {}, "struck out: down or drained"));
}

// A view that is fetched again with each new overview, and after a failure that may pass.
function asked(title, fetchIt, show) {
  const box = h("div", {}, h("p", {}, "Loading …"));
  let known = null, busy = false, again = false;
  const load = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try { fill(box, show(await fetchIt())); } catch (error) {
      again ||= mayPass(error);
      if (box.innerText !== error.message) fill(box, h("p", {role: "alert", class: "verdict warn"}, error.message)); // a reader says it once
    }
    setTimeout(() => { busy = false; if (again && box.isConnected) { again = false; load(); } }, PAUSE); // plans may follow each other quickly
  };
  load();
  const update = (told) => {
    if (known && told !== known) load();
    known = told;
  };
  return {title, box, update};
}

function switchView(fabric, values) {
  const id = values.get("id") || "";
  return asked(`Switch ${id}`, () => api(fabric, "switch", {id}), (told) => [
    facts([["Kind", told.kind], ["Zone", told.zone || "–"], ["State", told.state],
      ["Agent", told.agent ? `has a session (${told.agent.version || "version not told"})` : told.aside || "no session here"],
      ["Holds plan", told.holds === undefined ? "–" : `${told.holds} of ${told.generation}`]]),
    table("Links, the fullest first", ["Link", "To", "State", "#Out", "#In", "#Speed"],
      told.links.map((link) => [linkTo(fabric, link), link.kind === "nic" ? link.target : switchTo(fabric, link.target), link.state, percent(link.out), percent(link.in), gbps(link.gbps)])),
  ]);
}

function flowRows(fabric, flows) {
  return flows.map((one) => [flowTo(fabric, one.flow), jobTo(fabric, one.job), gbps(one.gbps), one.unrouted ? "no path" : percent(one.share), one.unrouted || linkTo(fabric, one.link), percent(one.utilization)]);
}
const FLOW_HEADS = ["Flow", "Job", "#Wants", "#Gets", "Limiting link", "#Full"];

function linkView(fabric, values) {
  const given = {source: values.get("source") || "", target: values.get("target") || "", key: values.get("key") || ""};
  return asked(`Link ${linkName(given)}`, () => api(fabric, "link", given), (told) => [
    facts([["State", told.state], ["Speed", gbps(told.gbps)], ["Agents say", told.condition || "nothing wrong"],
      [`${told.source} → ${told.target}`, percent(told.forth.utilization)], [`${told.target} → ${told.source}`, percent(told.back.utilization)]]),
    h("p", {}, "Switches: ", [told.source, told.target].filter((end) => !told.nics.includes(end)).map((end, place) => [place ? ", " : "", switchTo(fabric, end)])),
    ...[["forth", told.source, told.target], ["back", told.target, told.source]].map(([way, from, end]) => [
      h("h2", {}, `${from} → ${end}`),
      h("p", {}, `${many(told[way].flow_count, "flow", "flows")}, ${gbps(told[way].load)} of ${gbps(told.gbps)}${told[way].measured === null ? "" : `, measured ${percent(told[way].measured)}`}; jobs: `, told[way].jobs.length ? told[way].jobs.map((job, place) => [place ? ", " : "", jobTo(fabric, job)]) : "none"),
      table("Flows over it, those with the fullest links first", FLOW_HEADS, flowRows(fabric, told[way].flows)),
    ]),
  ]);
}

function jobsView(fabric, values) {
  return asked("Jobs", () => api(fabric, "jobs", {page: values.get("page") || ""}), (told) => [
    table("Jobs by name", ["Job", "State", "#Flows", "#Without path", "Why"],
      told.jobs.map((job) => { const id = lastPart(job); return [jobTo(fabric, id), job.state.replace("JOB_STATE_", "").toLowerCase(), `${job.flow_count}`, `${job.unrouted_count}`, job.reason || "–"]; })),
    told.next_page_token ? h("p", {}, to(at(fabric, "jobs", {page: told.next_page_token}), "Next page")) : null,
  ]);
}

function findings(found) {
  const word = (one) => one.severity.replace("SEVERITY_", "").toLowerCase();
  return found.length
    ? h("ul", {class: "findings", id: "findings"}, found.map((one) => h("li", {}, h("strong", {}, `${word(one)}: `), one.text, one.cure ? h("p", {class: "note"}, one.cure) : null)))
    : h("p", {id: "findings"}, "Nothing is wrong.");
}

function healthView(fabric) {
  return asked("Doctor", () => api(fabric, "health"), (told) => [
    h("p", {class: "note"}, `What this controller (version ${told.version}) sees, the worst first. heddle doctor asks every controller, and compares.`),
    findings(told.findings),
  ]);
}

function examined(fabric, job, told) {
  const measured = told.measured_gbps === undefined ? "not measured" : gbps(told.measured_gbps);
  return [
    h("h2", {}, "What the doctor says"),
    findings(told.findings),
    told.slowest ? facts([["Slowest flow", flowTo(fabric, told.slowest.flow)], ["Expected rate", gbps(told.expected_gbps)], ["Measured rate", measured],
      ["Its entries", told.pinned ? "in force on all switches of its paths" : "not in force everywhere yet"]]) : null,
    told.sharers.length ? table("Who shares the link that limits it", ["Job", "#Flows", "#Load"],
      told.sharers.map((one) => [jobTo(fabric, one.job), `${one.flow_count}`, gbps(one.gbps)])) : null,
  ];
}

function jobView(fabric, values) {
  const id = values.get("id") || "";
  const both = async () => ({...await api(fabric, "job", {id}), doctor: await api(fabric, "examination", {id})});
  return asked(`Job ${id}`, both, (told) => {
    const {job, slowest} = told, worst = slowest.find((one) => one.link);
    return [
      facts([["State", job.state.replace("JOB_STATE_", "").toLowerCase()], ["Why", job.reason || "–"], ["Flows", `${job.flow_count}`],
        ["Without a path", `${job.unrouted_count}`], ["Hosts", `${job.spec.hosts.length}`], ["First plan", `${job.generation}`]]),
      worst ? h("p", {id: "guilty"}, worst.utilization > 1 ? "Slow for the link " : "Its fullest link is ", linkTo(fabric, worst.link), `: ${percent(worst.utilization)} full, so `, flowTo(fabric, worst.flow), ` gets ${percent(worst.share)} of what it wants.`) : null,
      examined(fabric, id, told.doctor),
      table("Its flows, the slowest first", FLOW_HEADS, flowRows(fabric, slowest)),
      h("p", {}, to(at(fabric, "flows", {job: id}), "All its flows and their paths")),
    ];
  });
}

function flowsView(fabric, values) {
  const given = {job: values.get("job") || "", source: values.get("source") || "", target: values.get("target") || "", key: values.get("key") || "", page: values.get("page") || ""};
  const expired = (error) => { if (error.status === 409) return null; throw error; };
  return asked(given.job ? `Flows of ${given.job}` : "Flows", () => api(fabric, "routes", given).catch(expired), (told) => (told ? [
    table(`Of plan ${told.generation}, in its order`, ["Flow", "Job", "#Wants", "Path"],
      told.routes.map((route) => [flowTo(fabric, route.flow), jobTo(fabric, route.job), gbps(route.gbps), route.unrouted_reason || route.paths.map((path) => h("div", {}, wayOf(path)))])),
    told.next_page_token ? h("p", {}, to(at(fabric, "flows", {...given, page: told.next_page_token}), "Next page")) : null,
  ] : h("p", {class: "verdict warn"}, "There is a newer plan, with other pages: ", to(at(fabric, "flows", {...given, page: ""}), "begin at its first page"), ".")));
}

function flowView(fabric, values) {
  const id = values.get("id") || "";
  const both = async () => {
    const told = await api(fabric, "flow", {id});
    return {...told, doctor: told.route.job ? await api(fabric, "examination", {id: told.route.job}) : null};
  };
  return asked(`Flow ${id}`, both, (told) => {
    const {route, hops, reasons, doctor} = told;
    return [
      facts([["From", route.source], ["To", route.destination], ["Wants", gbps(route.gbps)], ["Job", jobTo(fabric, route.job)],
        ["Source port", route.source_port ? `${route.source_port}` : "any"], ["Paths to choose from", `${told.candidate_count}`]]),
      h("h2", {}, "Why it goes there"), h("ul", {id: "reasons"}, reasons.map((text) => h("li", {}, text))),
      route.unrouted_reason ? h("p", {class: "verdict bad"}, route.unrouted_reason) : null,
      table("Its links", ["#Path", "Link", "#Load", "#Speed", "#Full", "#Other flows"],
        hops.map((hop) => [`${hop.path + 1}`, linkTo(fabric, hop.link), gbps(hop.load_gbps), gbps(hop.capacity_gbps), percent(hop.load_gbps / hop.capacity_gbps), `${hop.other_flow_count}`])),
      doctor?.slowest?.flow === id ? [h("p", {}, "It is the slowest flow of its job."), examined(fabric, route.job, doctor)] : null,
      table("Backups, where a path breaks", ["#Path", "Backup"], route.backups.map((path, place) => [`${place + 1}`, path.nodes.length ? wayOf(path) : "none: the underlay"])),
    ];
  });
}

function whatIfView(fabric) {
  const kind = h("select", {id: "kind"}, [["link", "A link fails"], ["switch", "A switch is drained"], ["job", "A job ends"]].map(([value, text]) => h("option", {value}, text)));
  const named = h("input", {id: "named", required: true, autocomplete: "off", list: "names"}), label = h("label", {for: "named"});
  const names = h("datalist", {id: "names"});
  let known = [];
  const answer = h("div", {id: "answer", role: "status"});
  const say = () => { label.textContent = {link: "Link, as A,B or A,B,KEY", switch: "Switch", job: "Job"}[kind.value]; };
  const names_of = {
    link: async () => { const {switch: {id}, link: {a, b, key}} = await api(fabric, "structure"); return a.map((end, link) => linkName({source: id[end], target: id[b[link]], key: key[link]})); },
    switch: async () => (await api(fabric, "structure")).switch.id,
    job: async () => (await all("jobs", (page) => api(fabric, "jobs", {page}))).map(lastPart),
  };
  const offer = () => { const text = named.value.trim(); names.replaceChildren(...known.filter((name) => name.includes(text)).slice(0, MOST_NAMES).map((value) => h("option", {value}))); };
  const fetchNames = async () => {
    const of = kind.value, some = await names_of[of]().catch(() => null);
    if (some && of === kind.value) { known = some; offer(); }
  };
  kind.addEventListener("change", () => { say(); known = []; offer(); fetchNames(); });
  named.addEventListener("focus", fetchNames);
  named.addEventListener("input", offer);
  say();
  const supposed = () => {
    const wanted = named.value.trim();
    return {
      link: {down: wanted},
      switch: {switches: [{node: wanted, admin_state: "STATE_DRAINED"}]},
      job: {deleted_jobs: [wanted]},
    }[kind.value];
  };
  const submit = async (event) => {
    event.preventDefault();
    answer.replaceChildren(h("p", {}, "Planning …"));
    try {
      const told = await ask(`/api/fabrics/${encodeURIComponent(fabric)}/what-if`, {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(supposed())});
      const worst = (plan) => (plan?.certificate ? percent(plan.certificate.max_utilization) : "–");
      answer.replaceChildren(
        table("Nothing was changed", ["", "#Now", "#Then"], [
          ["Worst link", worst(told.before), worst(told.after)],
          ["Flows routed", `${told.before?.routed_count ?? "–"}`, `${told.after?.routed_count ?? "–"}`],
          ["Flows without a path", `${told.before?.unrouted_count ?? "–"}`, `${told.after?.unrouted_count ?? "–"}`],
        ]),
        h("p", {}, `${many(told.after.changed_count, "flow would", "flows would")} move.`),
        table("Flows that would lose their path", ["Flow", "Why"], told.unrouted.map((route) => [flowTo(fabric, route.flow), route.unrouted_reason])),
      );
    } catch (error) { answer.replaceChildren(h("p", {role: "alert", class: "verdict warn"}, error.message)); }
  };
  const form = h("form", {onsubmit: submit}, h("label", {for: "kind"}, "Suppose"), kind, label, named, names, h("button", {type: "submit"}, "Ask"));
  return {title: "What if", box: h("div", {}, h("p", {}, "A plan is made as if, and thrown away."), form, answer)};
}

function fabricsView() {
  const view = asked("Fabrics", () => all("fabrics", (page) => ask(`/api/fabrics?${query({page})}`)), (fabrics) => {
    const names = fabrics.map(lastPart);
    if (names.length === 1) go(at(names[0]), true);
    return [table("By name", ["Fabric", "Title"], fabrics.map((fabric, place) => [to(at(names[place]), names[place]), fabric.title || "–"]), "import one with heddle fabric import.")];
  });
  return {...view, update: null};
}

// ---- addresses

const BY_NAME = {"": overviewView, map: mapView, health: healthView, jobs: jobsView, job: jobView, flows: flowsView, flow: flowView, switch: switchView, link: linkView, plans: plansView, comparison: comparisonView, drills: drillsView, events: eventsView, "what-if": whatIfView};
let shown = {};

function route(first = false) {
  const [, word, fabric, name = "", ...rest] = location.pathname.split("/").map(decodeURIComponent);
  const make = word === "fabrics" && fabric && !rest.length ? BY_NAME[name] : word === "" ? fabricsView : null;
  const here = word === "fabrics" && fabric ? fabric : null;
  follow(here);
  nav.replaceChildren(...(here ? VIEWS.map(([view, text]) => h("a", {href: at(here, view), "aria-current": view === name ? "page" : null}, text)) : []));
  shown = make ? make(fabric, new URLSearchParams(location.search)) : {title: "No such page", box: h("p", {}, to("/", "Begin here"))};
  document.title = `${shown.title} – Heddle`;
  main.replaceChildren(h("h1", {}, shown.title), shown.box);
  if (feed.overview && here) shown.update?.(feed.overview);
  if (!first) { main.focus(); scrollTo(0, 0); }
  tellLive();
}

function go(href, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  route();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.origin !== location.origin || link.hash || !/^\/($|fabrics\/)/.test(link.pathname)) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", () => route());
route(true);
