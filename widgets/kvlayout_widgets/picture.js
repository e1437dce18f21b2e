// Shows one PNG, and reports pointer, wheel and keys in the data coordinates of the axes they hit.

const DRAG_PIXELS = 5;
const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown", "+", "-", "Escape"];

function scaled(fraction, [from, to], scale) {
  return scale === "log" ? from * (to / from) ** fraction : from + fraction * (to - from);
}

// Fractions of the picture, from its left and its bottom edge, as in matplotlib.
function fractions(image, event) {
  const box = image.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, 1 - (event.clientY - box.top) / box.height];
}

function inAxes(axes, index, [fx, fy]) {
  const a = axes[index];
  const inside = (f, from, to) => Math.min(1, Math.max(0, (f - from) / (to - from)));
  return {
    axes: index,
    x: scaled(inside(fx, a.x0, a.x1), a.xlim, a.xscale),
    y: scaled(inside(fy, a.y0, a.y1), a.ylim, a.yscale),
  };
}

function axesAt(axes, [fx, fy]) {
  return axes.findIndex((a) => fx >= a.x0 && fx <= a.x1 && fy >= a.y0 && fy <= a.y1);
}

function isDark() {
  const light = document.body.dataset.jpThemeLight;
  return light === undefined ? false : light === "false";
}

// Files that the kernel made are saved once, however often the picture is shown.
function initialize({ model }) {
  model.on("msg:custom", (message, buffers) => {
    if (message.type !== "download") return;
    const url = URL.createObjectURL(new Blob([buffers[0]], { type: message.mime }));
    const link = Object.assign(document.createElement("a"), { href: url, download: message.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  });
}

function render({ model, el }) {
  let count = 0;
  let pressed = null;
  let frame = 0;
  const root = Object.assign(document.createElement("div"), { className: "kvlayout-picture", tabIndex: 0 });
  const image = Object.assign(document.createElement("img"), { draggable: false });
  const band = Object.assign(document.createElement("div"), { className: "kvlayout-band", hidden: true });
  const tip = Object.assign(document.createElement("div"), { className: "kvlayout-tip", hidden: true });
  // JupyterLab would take arrow keys as moves between cells.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.append(image, band, tip);
  el.append(root);

  const report = (name, value) => {
    count += 1;
    model.set(name, value && { ...value, n: count });
    model.save_changes();
  };

  const showPicture = () => {
    const old = image.src;
    image.src = URL.createObjectURL(new Blob([model.get("png")], { type: "image/png" }));
    if (old) URL.revokeObjectURL(old);
    image.alt = model.get("alt");
    root.setAttribute("aria-label", model.get("alt"));
    image.style.aspectRatio = `${model.get("width")} / ${model.get("height")}`;
    root.style.maxWidth = `${model.get("width")}px`;
  };

  const showTip = () => {
    tip.textContent = model.get("readout");
    tip.hidden = !tip.textContent || !root.matches(":hover");
  };

  const moveTip = (event) => {
    const box = root.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    Object.assign(tip.style, x < box.width / 2
      ? { left: `${x + 16}px`, right: "auto" } : { left: "auto", right: `${box.width - x + 16}px` });
    Object.assign(tip.style, y < box.height / 2
      ? { top: `${y + 14}px`, bottom: "auto" } : { top: "auto", bottom: `${box.height - y + 14}px` });
  };

  const showBand = (event) => {
    const box = root.getBoundingClientRect();
    const x = [pressed.clientX, event.clientX].map((v) => Math.min(Math.max(v, box.left), box.right) - box.left);
    const y = [pressed.clientY, event.clientY].map((v) => Math.min(Math.max(v, box.top), box.bottom) - box.top);
    Object.assign(band.style, {
      left: `${Math.min(...x)}px`, width: `${Math.abs(x[1] - x[0])}px`,
      top: `${Math.min(...y)}px`, height: `${Math.abs(y[1] - y[0])}px`,
    });
    band.hidden = false;
  };

  const isDrag = (event) => model.get("drags")
    && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > DRAG_PIXELS;

  root.addEventListener("pointermove", (event) => {
    moveTip(event);
    if (pressed && isDrag(event)) showBand(event);
    if (pressed || frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      const at = fractions(image, event);
      const index = axesAt(model.get("axes"), at);
      image.style.cursor = index === 0 ? "crosshair" : "default";
      if (index >= 0) report("hover", inAxes(model.get("axes"), index, at));
      else if (model.get("hover")) report("hover", null);
    });
  });

  root.addEventListener("pointerleave", () => {
    cancelAnimationFrame(frame);
    frame = 0;
    tip.hidden = true;
    if (model.get("hover")) report("hover", null);
  });

  root.addEventListener("pointerdown", (event) => {
    const at = fractions(image, event);
    const index = axesAt(model.get("axes"), at);
    if (event.button !== 0 || index < 0) return;
    pressed = { from: inAxes(model.get("axes"), index, at), clientX: event.clientX, clientY: event.clientY };
    root.setPointerCapture(event.pointerId);
  });

  root.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const from = pressed.from;
    if (isDrag(event)) {
      const to = inAxes(model.get("axes"), from.axes, fractions(image, event));
      report("drag", { axes: from.axes, x0: from.x, y0: from.y, x1: to.x, y1: to.y });
    } else {
      report("click", from);
    }
    pressed = null;
    band.hidden = true;
  });

  root.addEventListener("pointercancel", () => {
    pressed = null;
    band.hidden = true;
  });

  root.addEventListener("wheel", (event) => {
    // Without focus the wheel scrolls the notebook, as everywhere.
    if (!model.get("wheels") || !root.contains(document.activeElement)) return;
    const at = fractions(image, event);
    const index = axesAt(model.get("axes"), at);
    if (index < 0) return;
    event.preventDefault();
    report("wheel", { ...inAxes(model.get("axes"), index, at), delta: Math.sign(event.deltaY) });
  }, { passive: false });

  root.addEventListener("keydown", (event) => {
    if (!KEYS.includes(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    report("key", { key: event.key, shift: event.shiftKey });
  });

  const reportHost = () => {
    model.set("pixel_ratio", window.devicePixelRatio || 1);
    model.set("is_dark", isDark());
    model.save_changes();
  };
  const watcher = new MutationObserver(reportHost);
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });

  model.on("change:png change:alt", showPicture);
  model.on("change:readout", showTip);
  showPicture();
  reportHost();

  return () => {
    watcher.disconnect();
    model.off("change:png change:alt", showPicture);
    model.off("change:readout", showTip);
    URL.revokeObjectURL(image.src);
  };
}

export default { initialize, render };
