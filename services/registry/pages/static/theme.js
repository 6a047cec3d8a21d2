// Before the first paint: the theme that the reader chose last, else the system's.
(() => {
  const chosen = localStorage.getItem("headrace-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
