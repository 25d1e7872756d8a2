// Before anything is painted: the person's choice, else the system's.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("theme");
    document.documentElement.dataset.bsTheme = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("theme"));
  };
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    localStorage.setItem("theme", document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark");
    apply();
  });
  apply();
})();
