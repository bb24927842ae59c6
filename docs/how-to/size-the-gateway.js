// The calculator of size-the-gateway.md. All numbers come from attributes of its form.
"use strict";

const sizingFields = [
  ["requests", "requests per second", 10000],
  ["mbIn", "MB per second from clients", 100],
  ["mbOut", "MB per second to clients", 200],
  ["connections", "new connections per second", 10],
  ["open", "open connections", 2000],
];

/** Cores, workers and MB of memory for a load; `costs` are microseconds, MB and KiB as in the form. */
function sizeOf(costs, load) {
  const us =
    load.requests * costs.requests +
    load.mbIn * costs.mbIn +
    load.mbOut * costs.mbOut +
    load.connections * costs.connections;
  const cores = us / 1e6 / costs.busy;
  const workers = Math.max(1, Math.ceil(cores));
  const processes = costs.gateway + (workers > 1 ? workers * costs.worker : 0);
  return { cores, workers, mb: processes + (load.open * costs.connection * 1024) / 1e6 };
}

function showSizing(form) {
  const costs = Object.fromEntries(Object.entries(form.dataset).map(([name, value]) => [name, Number(value)]));
  for (const [name, label, value] of sizingFields) {
    const line = document.createElement("p");
    const input = document.createElement("input");
    Object.assign(input, { type: "number", name, min: 0, value });
    input.style.cssText = "width: 8em; padding: 0.2em; border: 1px solid currentColor; color: inherit";
    const text = document.createElement("label");
    text.append(input, ` ${label}`);
    line.append(text);
    form.append(line);
  }
  const answer = form.appendChild(document.createElement("p"));
  const compute = () => {
    const load = Object.fromEntries(sizingFields.map(([name]) => [name, Math.max(0, Number(form[name].value) || 0)]));
    const { cores, workers, mb } = sizeOf(costs, load);
    const words = `${cores.toFixed(2)} cores at ${costs.busy * 100} %: ${workers} ${workers > 1 ? "workers" : "worker"}`;
    answer.replaceChildren(Object.assign(document.createElement("strong"), { textContent: `${words}, ${Math.ceil(mb)} MB` }));
  };
  form.addEventListener("input", compute);
  form.addEventListener("submit", (event) => event.preventDefault());
  compute();
}

if (typeof document !== "undefined") showSizing(document.getElementById("sizing"));
