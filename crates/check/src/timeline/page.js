"use strict";
(function () {
  const picture = document.getElementById("picture"), view = picture.parentNode, tip = document.getElementById("tip");
  const columns = +picture.dataset.columns, end = +picture.dataset.end;
  const moving = picture.querySelectorAll("g[data-a], rect[data-a], line[data-a]");
  const lanes = [...picture.querySelectorAll(".labels > g")].map(g => ({
    rows: g.dataset.rows.split(" "), texts: [...g.children],
  }));
  let column, pinned = null, under = null;
  const x = rank => (+rank + .5) * column;

  // Stretches the picture to columns of this width, keeping what is at `anchor` (in pixels of the view) in place.
  function zoom(width, anchor) {
    const before = column ? (view.scrollLeft + anchor) / column : 0;
    column = Math.min(160, Math.max(Math.min(3, (view.clientWidth - end) / columns), width));
    picture.setAttribute("width", columns * column + end);
    for (const el of moving) {
      const { a, b } = el.dataset;
      if (el.tagName === "g") el.setAttribute("transform", `translate(${x(a)},${el.dataset.y})`);
      else if (el.tagName === "line") { el.setAttribute("x1", x(a)); el.setAttribute("x2", x(b)); }
      else { el.setAttribute("x", x(a)); el.setAttribute("width", Math.max(0, x(b) - x(a))); }
    }
    view.scrollLeft = before * column - anchor;
    fit();
  }

  // Shows the labels that have room. Those of bars stay in sight while their bar is.
  function fit() {
    const left = view.scrollLeft + 6;
    for (const { rows, texts } of lanes) {
      const taken = rows.map(() => []);
      const ordered = texts.filter(t => "first" in t.dataset).concat(texts.filter(t => !("first" in t.dataset)));
      for (const text of ordered) {
        const width = text.textContent.length * 7.3 + 6;
        let from = x(text.dataset.a) + +text.dataset.shift;
        if (text.dataset.b) from = Math.max(from, Math.min(left, x(text.dataset.b) - width));
        const row = taken.findIndex(row => row.every(([a, b]) => from + width <= a || b <= from));
        text.toggleAttribute("hidden", row < 0);
        if (row < 0) continue;
        taken[row].push([from, from + width]);
        text.setAttribute("x", from);
        text.setAttribute("y", rows[row]);
      }
    }
  }

  // Marks what belongs to the same event, operation or cell, and dims the rest if it was asked for by a click.
  function relate(el, dim) {
    for (const old of document.querySelectorAll(".rel")) old.classList.remove("rel");
    picture.classList.toggle("dim", Boolean(el && dim));
    if (!el) return;
    const { e, o, c } = el.dataset;
    const own = [e && `[data-e="${e}"]`, o && `[data-o="${o}"]`, c && `[data-c="${CSS.escape(c)}"]`];
    for (const other of document.querySelectorAll(own.filter(Boolean).join())) other.classList.add("rel");
    if (e) document.getElementById("e" + e).classList.add("rel");
  }

  function show(el, at) {
    const row = el.dataset.e && document.getElementById("e" + el.dataset.e);
    tip.textContent = row ? [...row.cells].slice(1).map(cell => cell.textContent).join(" · ") : el.dataset.t;
    const more = document.createElement("small");
    const bar = row && el.dataset.o && picture.querySelector(`rect[data-o="${el.dataset.o}"]`);
    more.textContent = (row ? "step " + row.cells[0].textContent : "") + (bar ? " · " + bar.dataset.t : "");
    tip.append(more);
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(at.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    const below = at.clientY + 16;
    tip.style.top = (below + tip.offsetHeight < innerHeight ? below : at.clientY - tip.offsetHeight - 10) + "px";
  }

  function go(mark) {
    view.scrollLeft = x(mark.dataset.a) - view.clientWidth / 2;
    mark.scrollIntoView({ block: "center", inline: "nearest" });
    relate(pinned = mark, true);
  }

  function fails() {
    if (picture.dataset.fails) view.scrollLeft = x(picture.dataset.fails) - view.clientWidth * .72;
  }

  const start = () => zoom(Math.min(56, Math.max(26, (view.clientWidth - end) / columns)), 0);
  const middle = () => view.clientWidth / 2;
  document.getElementById("in").onclick = () => zoom(column * 1.4, middle());
  document.getElementById("out").onclick = () => zoom(column / 1.4, middle());
  document.getElementById("whole").onclick = () => zoom(0, 0);
  const failing = document.getElementById("failing");
  if (failing) failing.onclick = () => { if (column < 20) start(); fails(); };
  view.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(column * Math.exp(-event.deltaY / 300), event.clientX - view.getBoundingClientRect().left);
  }, { passive: false });
  let waiting = false;
  view.addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; fit(); });
    waiting = true;
  });

  const target = event => event.target.closest("[data-e], [data-o]");
  picture.addEventListener("mousemove", event => {
    const el = target(event);
    if (el) show(el, event); else tip.hidden = true;
    if (!pinned && el !== under) relate(el, false);
    under = el;
  });
  picture.addEventListener("mouseleave", () => { tip.hidden = true; if (!pinned) relate(null); });
  let dragged = null;
  view.addEventListener("pointerdown", event => {
    if (event.button === 0 && event.pointerType === "mouse") dragged = { x: event.clientX, from: view.scrollLeft, far: false };
  });
  addEventListener("pointermove", event => {
    if (!dragged) return;
    dragged.far ||= Math.abs(event.clientX - dragged.x) > 4;
    view.classList.toggle("dragging", dragged.far);
    if (dragged.far) view.scrollLeft = dragged.from - (event.clientX - dragged.x);
  });
  addEventListener("pointerup", () => { setTimeout(() => { dragged = null; }); view.classList.remove("dragging"); });
  picture.addEventListener("click", event => {
    if (dragged && dragged.far) return;
    relate(pinned = target(event), true);
  });
  addEventListener("keydown", event => { if (event.key === "Escape") relate(pinned = null); });
  document.addEventListener("click", event => {
    const link = event.target.closest('a[href^="#m"]');
    const mark = link && document.getElementById(link.hash.slice(1));
    if (link) event.preventDefault();
    if (mark) go(mark);
  });

  if (columns === 0) return;
  start();
  fails();
  fit();
})();
