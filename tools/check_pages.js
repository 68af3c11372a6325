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

  window.checkPages = { overflow, images, math, measures, links, openAll };
})();
