"use strict";
// Runs before the page is drawn, so that it never flashes in the other colours.
{
  const chosen = localStorage.getItem("headrace-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
