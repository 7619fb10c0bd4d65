"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rollout-data").textContent);
  const pick = document.getElementById("pick");
  const stage = document.getElementById("stage");

  // All text is set as text: what a tool returned is never read as markup.
  const node = (tag, name, ...inside) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    for (const part of inside) if (part !== null && part !== undefined) made.append(part);
    return made;
  };
  const letter = (draw) => (draw < 26 ? String.fromCharCode(65 + draw) : String(draw + 1));
  const number = (value) => (value === null ? "none" : String(Math.round(value * 1000) / 1000).replace("-", "−"));

  const turn = (t) => {
    const box = node("div", t.fault && !t.idle ? "turn fault" : "turn");
    if (t.tool !== undefined) box.append(node("div", "call", node("b", "", t.tool), t.tool ? " " : "", t.arguments));
    else box.append(node("div", "call", t.text || "(nothing)"));
    if (t.problem) box.append(node("div", "badge quiet", t.problem));
    if (t.fault) {
      const words = t.fault.replaceAll("_", " ");
      box.append(node("div", t.idle ? "badge quiet" : "badge", t.idle ? `${words} (changed nothing)` : `fault: ${words}`));
    }
    if (t.result !== undefined) {
      const result = node("div", "result", t.result);
      result.tabIndex = 0;
      box.append(result);
    }
    if (t.event) box.append(node("div", "event", t.event));
    return box;
  };

  const sibling = (r) => {
    const box = node("article", "sibling");
    const known = r.draw !== null;
    box.style.setProperty("--draw", known ? `var(--d${r.draw % 8})` : "var(--line)");
    const reward = node("p", "reward");
    if (r.failure) {
      reward.append(node("b", "", "lost"), `: ${r.failure}; votes nowhere`);
    } else {
      if (r.true !== null) reward.append("true ", node("b", "", number(r.true)), ", ");
      reward.append("observed ", node("b", "", number(r.observed)));
      if (r.flip) reward.append(" ", node("span", "badge", "flipped"));
      if (r.advantage !== null) {
        const way = r.advantage > 0 ? "up" : r.advantage < 0 ? "down" : "";
        reward.append(", advantage ", node("b", way, (r.advantage > 0 ? "+" : "") + number(r.advantage)));
      }
    }
    box.append(
      node("header", "", node("b", "", `rollout ${r.index}`), known ? node("span", "draw", `draw ${letter(r.draw)}`) : null, node("span", "note", r.stop.replaceAll("_", " "))),
      reward,
      ...r.turns.map(turn),
    );
    return box;
  };

  const show = () => {
    const g = data[pick.selectedIndex];
    const strip = node("div", "siblings", ...g.rollouts.map(sibling));
    strip.tabIndex = 0;
    strip.setAttribute("aria-label", "Rollouts of the group, side by side");
    stage.replaceChildren(
      node("p", "prompt", g.prompt),
      node("p", "note", g.note),
      strip,
    );
  };

  data.forEach((g) => pick.append(node("option", "", g.name)));
  const move = (by) => {
    pick.selectedIndex = (pick.selectedIndex + by + data.length) % data.length;
    show();
  };
  pick.addEventListener("change", show);
  document.getElementById("before").addEventListener("click", () => move(-1));
  document.getElementById("after").addEventListener("click", () => move(1));
  if (data.length) show();
})();
