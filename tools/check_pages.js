// What tools/check_pages.py asks a page about itself. Each function returns plain data.
(() => {
  const article = () => document.querySelector("article") || document.body;
  const visible = (el) => el.checkVisibility({ checkVisibilityCSS: true });
  const name = (el) =>
    el.tagName.toLowerCase() +
    (el.id ? `#${el.id}` : "") +
    (el.classList.length ? `.${[...el.classList].slice(0, 3).join(".")}` : "") +
    ` "${(el.textContent || "").trim().slice(0, 40)}"`;

  // An ancestor that scrolls or clips keeps its content from widening the page.
  const boxed = (el) => {
    for (let up = el.parentElement; up && up !== document.body; up = up.parentElement) {
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(up).overflowX))
        if (up.getBoundingClientRect().right <= innerWidth + 1) return true;
    }
    return false;
  };

  const overflow = () => {
    const found = [];
    const width = document.documentElement.scrollWidth;
    if (width > innerWidth + 1) found.push(`the page is ${width} px wide`);
    for (const el of article().querySelectorAll("*")) {
      if (!visible(el)) continue;
      const box = el.getBoundingClientRect();
      if (box.width > 1 && box.right > innerWidth + 1 && !boxed(el))
        found.push(`${name(el)} ends at ${Math.round(box.right)} px`);
    }
    return found.slice(0, 5);
  };

  const images = () =>
    [...document.images].flatMap((img) => {
      const source = img.currentSrc.split("/").pop().slice(-40);
      return [
        img.alt.trim() ? "" : `image without alt text: ${source}`,
        img.complete && img.naturalWidth > 0 && img.naturalHeight > 0
          ? ""
          : `image that does not load: ${source}`,
      ].filter(Boolean);
    });

  const math = async () => {
    const formulas = [...document.querySelectorAll(".math")];
    if (!formulas.length) return [];
    if (!window.MathJax?.startup?.promise) return ["formulas, but no MathJax"];
    await MathJax.startup.promise;
    return formulas.flatMap((el) => {
      if (!el.querySelector("mjx-container")) return [`formula not drawn: ${name(el)}`];
      return el.querySelector("mjx-merror") ? [`wrong formula: ${name(el)}`] : [];
    });
  };

  const channels = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) =>
      c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4,
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const over = (top, alpha, below) => top.map((c, i) => alpha * c + (1 - alpha) * below[i]);

  // The color behind an element: its own background over those of its ancestors.
  const background = (el) => {
    if (!el) return [255, 255, 255];
    const [r, g, b, a = 1] = channels(getComputedStyle(el).backgroundColor);
    return a === 1 ? [r, g, b] : over([r, g, b], a, background(el.parentElement));
  };

  const contrast = (least) => {
    const found = new Map();
    const texts = document.createTreeWalker(article(), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const el = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !visible(el)) continue;
      if (el.closest("script, style, mjx-container, button, .headerlink")) continue;
      const below = background(el);
      const [r, g, b, a = 1] = channels(getComputedStyle(el).color);
      const [one, two] = [luminance(over([r, g, b], a, below)), luminance(below)];
      const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
      const key = `${[r, g, b]} on ${below.map(Math.round)}`;
      if (ratio < least && !found.has(key))
        found.set(key, `contrast ${ratio.toFixed(1)} of ${name(el)} (${key})`);
    }
    return [...found.values()].slice(0, 8);
  };

  // Every set of synced tabs: which tab is chosen, and which content is to be seen.
  const tabs = () =>
    [...document.querySelectorAll(".sd-tab-set")].map((set) =>
      [...set.querySelectorAll(":scope > label.sd-tab-label")].map((label) => ({
        key: label.dataset.syncId || null,
        group: label.dataset.syncGroup || null,
        shown: getComputedStyle(label.nextElementSibling).display !== "none",
      })),
    );

  // Code and printed output, as a share of the page's height; the first figure's place.
  const pictures = "figure, img, svg, canvas";
  const outermost = (where, kind) =>
    [...where.querySelectorAll(kind)].filter((el) => !el.parentElement.closest(kind));
  const height = (el) => (visible(el) ? el.getBoundingClientRect().height : 0);
  const measures = () => {
    const sum = (all) => all.reduce((total, el) => total + height(el), 0);
    const cells = outermost(article(), "div.cell, div.code-tabs, div.highlight");
    const drawn = cells.flatMap((cell) => outermost(cell, pictures));
    const figure = outermost(article(), pictures).find((el) => height(el) > 80);
    return {
      code: (sum(cells) - sum(drawn)) / height(article()),
      figure: figure ? figure.getBoundingClientRect().top + scrollY : null,
      cells: article().querySelectorAll("div.cell").length,
    };
  };

  // What shuts out a reader with a screen reader or a keyboard, by axe's own measure.
  const access = async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"], preload: false });
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .map(({ id, nodes }) => `axe: ${id}, ${nodes.length} times: ${nodes[0].html.slice(0, 80)}`);
  };

  const links = () => ({
    hrefs: [...document.querySelectorAll("a[href]")]
      .map((a) => new URL(a.getAttribute("href"), document.baseURI).href) // also in an SVG
      .filter((href) => href.startsWith(location.origin)),
    ids: [...document.querySelectorAll("[id]")].map((el) => el.id),
  });

  const openAll = () => {
    for (const el of document.querySelectorAll("details")) el.open = true;
    for (const el of document.querySelectorAll(".toggle-hidden button.toggle-button"))
      el.click();
  };

  // What still slides or fades cannot be measured.
  addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "* { transition: none !important; animation: none !important; }";
    document.head.append(style);
  });

  window.checkPages = { overflow, images, math, contrast, tabs, measures, access, links, openAll };
})();
