// Before the first paint: the theme that the reader chose last on the registry's pages, else the system's.
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("headrace-theme");
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.classList.toggle("dark-mode", isDark);
  document.addEventListener("DOMContentLoaded", () =>
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("headrace-theme", root.classList.toggle("dark-mode") ? "dark" : "light");
    }),
  );
})();
